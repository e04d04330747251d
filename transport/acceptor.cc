#include "transport/acceptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "common/log.h"
#include "common/result.h"

namespace leeway::transport {
namespace {

int open_spare() noexcept { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

}  // namespace

Acceptor::Acceptor(std::string fabric, FileDescriptor listener)
    : fabric_(std::move(fabric)), listener_(std::move(listener)), spare_(open_spare()) {
  if (!spare_)
    throw ConfigError(fmt::format("fabric {}: descriptors for peers: {}; raise `ulimit -n`",
                                  fabric_, std::strerror(errno)));
}

FileDescriptor Acceptor::next() {
  FileDescriptor accepted(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (accepted || (errno != EMFILE && errno != ENFILE)) return accepted;
  spare_.reset();
  FileDescriptor turned_away(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const bool any = static_cast<bool>(turned_away);
  turned_away.reset();
  spare_.reset(open_spare());
  // Without a spare one nobody can be turned away either.
  if (any)
    log::warning("fabric {}: a peer was turned away, no descriptors left; raise `ulimit -n`",
                 fabric_);
  return {};
}

}  // namespace leeway::transport
