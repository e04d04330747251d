#include "transport/shm_cleanup.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <string>
#include <string_view>

namespace leeway::transport {
namespace {

// The provider names a segment PID:DOMAIN:ENDPOINT, all decimal.
bool belongs_to(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  return name.substr(prefix.size()).find_first_not_of("0123456789:") == std::string_view::npos;
}

}  // namespace

std::size_t remove_shm_leftovers(pid_t pid) noexcept {
  char prefix[24];
  char* end = std::to_chars(prefix, prefix + sizeof prefix - 1, pid).ptr;
  *end++ = ':';
  DIR* directory = opendir("/dev/shm");
  if (directory == nullptr) return 0;
  std::size_t removed = 0;
  while (const dirent* entry = readdir(directory))
    if (belongs_to(entry->d_name, std::string_view(prefix, static_cast<std::size_t>(end - prefix))))
      removed += unlinkat(dirfd(directory), entry->d_name, 0) == 0;
  closedir(directory);
  return removed;
}

}  // namespace leeway::transport
