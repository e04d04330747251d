#include "scheduler/launcher/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>

namespace leeway::launcher {
namespace {

std::size_t columns_of(int fd) {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
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
    : out_(out), err_(err), interactive_(interactive) {}

Terminal::~Terminal() { erase(); }

void Terminal::line(std::string_view text) {
  erase();
  write_all(out_, std::string(text) + "\n");
}

void Terminal::error_line(std::string_view text) {
  erase();
  write_all(err_, std::string(text) + "\n");
}

void Terminal::progress(std::string text) {
  if (!interactive_ || text == progress_) return;
  erase();
  progress_ = std::move(text);
}

void Terminal::refresh() {
  if (!interactive_ || drawn_ || progress_.empty()) return;
  // One column stays free: a full line would wrap on some terminals and could not be erased.
  write_all(out_, cut_to_width(progress_, columns_of(out_) - 1));
  drawn_ = true;
}

void Terminal::erase() {
  if (drawn_) write_all(out_, "\r\033[K");
  drawn_ = false;
}

void Terminal::write_all(int fd, std::string_view bytes) noexcept {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;  // nobody reads any more: the job goes on
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace leeway::launcher
