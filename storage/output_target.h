// Where the output of a command goes when a person names a file: a file is replaced whole, through
// a temporary one beside it, but a device, a pipe or a link must not be replaced by a file.
//
// A plain function, called from any thread.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace leeway::storage {

struct OutputTarget {
  std::string path;
  bool replace = true;  // write beside it and rename; else open it and write
};

inline OutputTarget output_target(const std::string& file) {
  constexpr int kMostLinks = 40;  // as the kernel has it
  struct stat info {};
  const bool exists = ::stat(file.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode)) return {.path = file, .replace = false};
  std::filesystem::path path = file;
  std::error_code error;
  for (int i = 0; i < kMostLinks && std::filesystem::is_symlink(path, error); ++i)
    path = path.parent_path() / std::filesystem::read_symlink(path, error);
  return {.path = path.string(), .replace = true};
}

}  // namespace leeway::storage
