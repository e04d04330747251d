// The bytes of a file in order, whether the file is plain or gzipped: told by its first two bytes,
// never by its name. Reads in bounded pieces; what it says about a damaged file names the file.
//
// Called from one thread. Closes the file when it goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "common/result.h"

namespace leeway::worker::data {

class ByteSource {
 public:
  // kNotFound when there is no such file; anything but a regular file is refused (a pipe would
  // keep the program waiting).
  static Result<ByteSource> open(const std::filesystem::path& path);
  ByteSource(ByteSource&&) noexcept;
  ByteSource& operator=(ByteSource&&) noexcept;
  ~ByteSource();

  // Fills `out` as far as the file goes; fewer bytes than asked for means its end.
  Result<std::size_t> read(std::span<std::uint8_t> out);
  // No file of this size holds more bytes than this, however well it is compressed.
  std::uint64_t most_bytes() const noexcept;

 private:
  struct State;
  explicit ByteSource(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace leeway::worker::data
