// What a process that was killed leaves in /dev/shm.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace leeway::transport {

// Deletes the segments of libfabric's shm provider that belonged to process `pid`; returns how
// many. For a process that is dead: its parent calls this after waiting for it, before the number
// can be given to another. Any thread.
std::size_t remove_shm_leftovers(pid_t pid) noexcept;

}  // namespace leeway::transport
