// What a loader reads: numbered samples, each a row of features and a label. Implement it for other
// data; Fashion-MNIST is in worker/data/fashion_mnist.h.
//
// read() is called from several loader threads at once; the rest from anywhere. Lives longer than
// the loaders that use it.
#pragma once

#include <cstdint>
#include <span>

#include "common/half.h"
#include "common/result.h"

namespace leeway::worker::data {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::uint64_t samples() const noexcept = 0;
  virtual std::uint64_t features() const noexcept = 0;  // FP16 elements of one sample
  virtual std::uint32_t classes() const noexcept = 0;   // labels are in [0, classes)

  // The samples `indices`, one after another, ready to be computed on: `features` has room for
  // indices.size() * features() elements, `labels` for indices.size().
  virtual Status read(std::span<const std::uint64_t> indices, Half* features,
                      std::int32_t* labels) const = 0;
};

}  // namespace leeway::worker::data
