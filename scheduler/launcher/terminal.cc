#include "scheduler/launcher/terminal.h"

#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "common/monotonic.h"

namespace leeway::launcher {
namespace {

std::size_t columns_of(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

// As after 2>&1: one queue keeps the order of the lines.
bool one_file(int a, int b) {
  struct stat first {
  }, second{};
  return a == b || (::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 &&
                    first.st_dev == second.st_dev && first.st_ino == second.st_ino);
}

}  // namespace

std::string cut_to_width(std::string_view text, std::size_t columns) {
  std::size_t used = 0, bytes = 0;
  for (; bytes < text.size(); ++bytes) {
    const bool begins = (static_cast<unsigned char>(text[bytes]) & 0xc0) != 0x80;
    if (begins && used++ == columns) break;
  }
  return std::string(text.substr(0, bytes));
}

Terminal::Terminal(int out, int err, bool interactive)
    : interactive_(interactive),
      out_(out),
      other_(one_file(out, err) ? std::nullopt : std::optional<OutputQueue>(std::in_place, err)),
      err_(other_ ? *other_ : out_) {}

Terminal::~Terminal() {
  erase();
  out_.pump();
  err_.pump();
}

void Terminal::line(std::string_view text) {
  erase();
  out_.put(std::string(text) + "\n");
}

void Terminal::error_line(std::string_view text) {
  erase();
  err_.put(std::string(text) + "\n");
}

void Terminal::progress(std::string text) {
  if (!interactive_ || text == progress_) return;
  erase();
  progress_ = std::move(text);
}

void Terminal::refresh() {
  out_.pump();
  err_.pump();
  if (!interactive_ || drawn_ || progress_.empty() || out_.waiting()) return;
  // One column stays free: a full line would wrap on some terminals and could not be erased.
  out_.put(cut_to_width(progress_, columns_of(out_.descriptor()) - 1));
  out_.pump();
  drawn_ = true;
}

std::vector<pollfd> Terminal::waits() const {
  std::vector<pollfd> fds;
  if (out_.waiting()) fds.push_back({out_.descriptor(), POLLOUT, 0});
  if (other_ && other_->waiting()) fds.push_back({other_->descriptor(), POLLOUT, 0});
  return fds;
}

void Terminal::drain(int signals, std::optional<milliseconds> patience) {
  const TimePoint until = patience ? MonotonicClock::now() + *patience : TimePoint::max();
  while (true) {
    refresh();
    std::vector<pollfd> fds = waits();
    const TimePoint now = MonotonicClock::now();
    if (fds.empty() || now >= until) return;
    fds.push_back({signals, POLLIN, 0});
    const auto left = std::chrono::ceil<milliseconds>(until - now);
    ::poll(fds.data(), fds.size(), patience ? static_cast<int>(left.count()) : -1);
    signalfd_siginfo info{};
    while (::read(signals, &info, sizeof info) == sizeof info)
      if (info.ssi_signo != SIGCHLD) return;
  }
}

void Terminal::erase() {
  if (drawn_) out_.put("\r\033[K");
  drawn_ = false;
}

}  // namespace leeway::launcher
