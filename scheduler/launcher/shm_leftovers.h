// libfabric's shm provider keeps its regions in /dev/shm and cannot remove them when its process is
// killed: 16 MiB stay for each. They are named after the process: "PID:UID:N" ("8713:0:0").
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <string_view>

namespace leeway::launcher {

// The process that a file of /dev/shm belongs to, 0 when it is no region of the provider's.
pid_t owner_of_region(std::string_view file_name) noexcept;

// Removes the regions of `dead` processes. Returns how many.
int remove_regions(const std::set<pid_t>& dead, const std::string& directory = "/dev/shm");

}  // namespace leeway::launcher
