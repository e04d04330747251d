// What a process holds and uses, as /proc says it.
#pragma once

#include <dirent.h>
#include <sys/types.h>

#include <cstddef>
#include <ctime>
#include <fstream>
#include <string>
#include <string_view>

namespace leeway::fault {

inline std::size_t count_entries(const std::string& directory, std::string_view containing = "") {
  std::size_t count = 0;
  DIR* list = opendir(directory.c_str());
  if (list == nullptr) return 0;
  while (const dirent* entry = readdir(list))
    count += entry->d_name[0] != '.' &&
             std::string_view(entry->d_name).find(containing) != std::string_view::npos;
  closedir(list);
  return count;
}
inline std::size_t descriptors_of(pid_t pid) {
  return count_entries("/proc/" + std::to_string(pid) + "/fd");
}
inline std::size_t threads_of(pid_t pid) {
  return count_entries("/proc/" + std::to_string(pid) + "/task");
}
// What lies in /dev/shm with this process's number in its name.
inline std::size_t shm_segments_of(pid_t pid) {
  return count_entries("/dev/shm", std::to_string(pid));
}
inline std::size_t resident_kib(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; status >> word;)
    if (word == "VmRSS:") {
      std::size_t kib = 0;
      status >> kib;
      return kib;
    }
  return 0;
}
// Seconds of processor time that this process has used.
inline double own_cpu_seconds() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

}  // namespace leeway::fault
