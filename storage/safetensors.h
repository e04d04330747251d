// The safetensors file format (huggingface/safetensors), FP32, as other programs read it.
//
//   u64 little-endian      bytes of the header that follows, a multiple of 8
//   header                 JSON, padded with spaces:
//                          {"__metadata__": {text: text},
//                           NAME: {"dtype": "F32", "shape": [...], "data_offsets": [begin, end]},
//                           ...}
//   data                   tensors one after the other in C order, little-endian, no gaps; offsets
//   count
//                          from here
//
// Each object is used by one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/tensor.h"

namespace leeway::storage {

struct SafetensorsEntry {
  std::string name;
  Shape shape;
};

// Streams tensors into FILE.tmp, which takes the name FILE when all are there. Destroyed before
// finish(): nothing remains, and what was in FILE before is untouched.
class SafetensorsWriter {
 public:
  static Result<std::unique_ptr<SafetensorsWriter>> create(
      const std::string& file, const std::vector<SafetensorsEntry>& tensors,
      const std::map<std::string, std::string>& metadata);
  virtual ~SafetensorsWriter() = default;
  // The next elements, in the order of `tensors`, in any number of pieces.
  virtual Status add(std::span<const float> values) = 0;
  virtual Status finish() = 0;  // durable when it returns
};

class SafetensorsReader {
 public:
  struct Tensor {
    std::string dtype;  // as written: "F32", "BF16", ...
    Shape shape;
    std::uint64_t begin = 0;  // within the data
    std::uint64_t bytes = 0;
  };
  // Refuses a header that is not JSON, over 100 MB, or does not fit the file, by name.
  static Result<std::unique_ptr<SafetensorsReader>> open(const std::string& file);
  virtual ~SafetensorsReader() = default;
  virtual const std::map<std::string, Tensor>& tensors() const = 0;
  virtual const std::map<std::string, std::string>& metadata() const = 0;
  // Elements [begin, begin + out.size()) of an F32 tensor.
  virtual Status read(const std::string& name, std::uint64_t begin, std::span<float> out) const = 0;
};

}  // namespace leeway::storage
