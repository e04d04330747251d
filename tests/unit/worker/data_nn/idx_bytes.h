// Bytes of files as data sets come in.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <vector>

#include "common/result.h"
#include "tests/unit/worker/temporary_directory.h"

namespace leeway::worker {

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
