// IDX files, the format of MNIST and its kin, plain or gzipped:
//
//   u8   0, 0            magic
//   u8   0x08            element type; 0x08 = unsigned byte, the only one read here
//   u8   n               number of dimensions
//   u32  dimension[n]    big-endian
//   u8   elements        row-major, exactly as many as the dimensions say, nothing after them
//
// A file may lie: memory is taken as bytes arrive, never on the word of a header. Every error is
// one line that begins with the file's name. Called from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "common/result.h"

namespace leeway::worker::data {

struct IdxArray {
  std::vector<std::uint32_t> dimensions;
  std::vector<std::uint8_t> elements;
};

// `rank` is the number of dimensions that the caller needs (images 3, labels 1).
Result<IdxArray> read_idx(const std::filesystem::path& path, std::uint8_t rank);

}  // namespace leeway::worker::data
