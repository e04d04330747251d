#include "scheduler/launcher/programs.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <vector>

#include "common/result.h"

namespace leeway::launcher {
namespace {

namespace fs = std::filesystem;

bool executable(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
}

void add_directories(std::vector<fs::path>& directories,
                     const std::map<std::string, std::string>& environment, const char* variable) {
  const auto it = environment.find(variable);
  if (it == environment.end()) return;
  const std::string& text = it->second;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    if (end > begin) directories.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

}  // namespace

std::string find_program(const std::string& name,
                         const std::map<std::string, std::string>& environment) {
  if (name.find('/') != std::string::npos) {
    if (executable(name)) return name;
    throw ConfigError(fmt::format("program {} is not there or cannot be executed", name));
  }
  std::vector<fs::path> directories;
  add_directories(directories, environment, "LEEWAY_BIN_PATH");
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error);
  if (!error) directories.push_back(own.parent_path());
  add_directories(directories, environment, "PATH");
  if (!name.empty())
    for (const fs::path& directory : directories)
      if (executable(directory / name)) return (directory / name).string();
  throw ConfigError(fmt::format("program '{}' was found neither beside leeway-run ({}) nor in PATH",
                                name, own.parent_path().string()));
}

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw ConfigError("the kernel gave no random numbers for the job's token");
  std::string text;
  for (unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace leeway::launcher
