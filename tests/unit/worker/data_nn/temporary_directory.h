// A directory of one test case, removed with everything in it at its end.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/result.h"

namespace leeway::worker {

using Bytes = std::vector<std::uint8_t>;

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "leeway-XXXXXX").string();
    LEEWAY_CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(const std::string& name, const Bytes& bytes) const {
    std::ofstream file(path_ / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    file.close();
    LEEWAY_CHECK(file.good());
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

// An IDX file of unsigned bytes, whatever its dimensions say of them.
inline Bytes idx_bytes(const std::vector<std::uint32_t>& dimensions, const Bytes& elements) {
  Bytes bytes{0, 0, 0x08, static_cast<std::uint8_t>(dimensions.size())};
  for (std::uint32_t d : dimensions)
    for (int shift = 24; shift >= 0; shift -= 8)
      bytes.push_back(static_cast<std::uint8_t>(d >> shift));
  bytes.insert(bytes.end(), elements.begin(), elements.end());
  return bytes;
}

inline Bytes gzip_bytes(const Bytes& plain) {
  z_stream deflater{};
  LEEWAY_CHECK(deflateInit2(&deflater, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  Bytes packed(deflateBound(&deflater, plain.size()));
  deflater.next_in = const_cast<Bytef*>(plain.data());
  deflater.avail_in = static_cast<uInt>(plain.size());
  deflater.next_out = packed.data();
  deflater.avail_out = static_cast<uInt>(packed.size());
  LEEWAY_CHECK(deflate(&deflater, Z_FINISH) == Z_STREAM_END);
  packed.resize(deflater.total_out);
  deflateEnd(&deflater);
  return packed;
}

}  // namespace leeway::worker
