#include "scheduler/launcher/output_queue.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace leeway::launcher {
namespace {

constexpr std::size_t kBatch = std::size_t{32} << 10;
// Where the descriptor may block, this much fits when poll() says that something does.
constexpr std::size_t kPiece = 4096;

Fd open_again(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !(S_ISFIFO(status.st_mode) || ::isatty(fd) != 0)) return Fd();
  return Fd(::open(fmt::format("/proc/self/fd/{}", fd).c_str(),
                   O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

OutputQueue::OutputQueue(int fd) : fd_(fd), own_(open_again(fd)) {}

void OutputQueue::put(std::string_view text) {
  if (pending_.size() + text.size() > kMost) pump();
  if (pending_.size() + text.size() > kMost) {
    ++left_out_;
    return;
  }
  if (left_out_ > 0) note_left_out();
  pending_ += text;
  if (pending_.size() >= kBatch) pump();
}

void OutputQueue::note_left_out() {
  pending_ += fmt::format(
      "leeway-run: {} lines are left out here, nobody read them in time; the logs have them\n",
      left_out_);
  left_out_ = 0;
}

void OutputQueue::pump() {
  write_pending();
  if (!pending_.empty() || left_out_ == 0) return;
  note_left_out();
  write_pending();
}

void OutputQueue::write_pending() {
  std::size_t written = 0;
  while (written < pending_.size()) {
    pollfd room{descriptor(), POLLOUT, 0};
    if (::poll(&room, 1, 0) == 0) break;
    const std::size_t size = std::min(pending_.size() - written, kPiece);
    const ssize_t got = ::write(descriptor(), pending_.data() + written, size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got < 0) {  // nobody reads any more: the job goes on
      written = pending_.size();
      break;
    }
    written += static_cast<std::size_t>(got);
  }
  pending_.erase(0, written);
}

}  // namespace leeway::launcher
