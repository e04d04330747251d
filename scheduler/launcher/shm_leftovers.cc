#include "scheduler/launcher/shm_leftovers.h"

#include <charconv>
#include <filesystem>
#include <system_error>
#include <vector>

namespace leeway::launcher {

pid_t owner_of_region(std::string_view file_name) noexcept {
  pid_t pid = 0;
  const char* const end = file_name.data() + file_name.size();
  const char* at = file_name.data();
  for (int part = 0; part < 3; ++part) {
    std::uint32_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc()) return 0;
    if (part == 0) pid = static_cast<pid_t>(number);
    at = next;
    if (part == 2) return at == end ? pid : 0;
    if (at == end || *at != ':') return 0;
    ++at;
  }
  return 0;
}

int remove_regions(const std::set<pid_t>& dead, const std::string& directory) {
  std::error_code error;
  std::vector<std::filesystem::path> leftovers;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error))
    if (dead.contains(owner_of_region(it->path().filename().string())))
      leftovers.push_back(it->path());
  int removed = 0;
  for (const auto& path : leftovers) removed += std::filesystem::remove(path, error) ? 1 : 0;
  return removed;
}

}  // namespace leeway::launcher
