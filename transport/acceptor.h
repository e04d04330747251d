// Takes connections from a listening socket, and none that there is no descriptor left for: such a
// peer would wait at the door for ever, and keep us awake.
//
// Belongs to the thread of its rail.
#pragma once

#include <string>

#include "transport/file_descriptor.h"

namespace leeway::transport {

class Acceptor {
 public:
  // `fabric` is for the log. Throws ConfigError.
  Acceptor(std::string fabric, FileDescriptor listener);

  // The next one, non-blocking; empty: nobody is there, or somebody was turned away.
  FileDescriptor next();
  int descriptor() const noexcept { return listener_.get(); }

 private:
  const std::string fabric_;
  FileDescriptor listener_;
  FileDescriptor spare_;  // for turning somebody away when there are no descriptors left
};

}  // namespace leeway::transport
