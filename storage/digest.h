// The digest of a model: one hash over all tensors in name order, so that two runs can be compared
// by one line, whatever saved them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/tensor.h"

namespace leeway::storage {

// Feed tensors in ascending name order: begin_tensor, then its elements in order in any number of
// pieces. Not thread-safe.
class ModelDigest {
 public:
  ModelDigest();
  ~ModelDigest();
  void begin_tensor(std::string_view name, const Shape& shape);
  void add(std::span<const float> values);
  std::string hex() const;  // 32 hex digits, XXH3-128

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace leeway::storage
