// Who can execute a kernel here, and a little to fill and compare arrays. Every backend's case runs
// on all executors: the CPU, the emulated CUDA kernels, and a GPU where one answers.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/half.h"
#include "kernels/backend.h"
#include "kernels/device_backend.h"

namespace leeway::kernels::test {

// The CPU, the emulation, and CUDA when a device answers. Opened once, used from the test's thread.
const std::vector<Backend*>& backends();
// The same without the CPU.
const std::vector<DeviceBackend*>& device_backends();

// Sizes around the boundaries of vectors, warps, blocks and the update's cache blocks.
inline const std::vector<std::int64_t> kSizes = {0,  1,  3,   7,   8,   9,    15,   16,   17,  31,
                                                 32, 33, 255, 256, 257, 1023, 1024, 1025, 2053};

constexpr double kHalfEpsilon = 0x1p-11;  // half a unit in the last place, relative
constexpr double kFloatEpsilon = 0x1p-24;
constexpr double kHalfSmallest = 0x1p-24;  // the smallest subnormal

class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}
  float uniform(float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(engine_);
  }
  int below(int end) { return std::uniform_int_distribution<int>(0, end - 1)(engine_); }
  std::vector<float> floats(std::int64_t count, float low = -1.0f, float high = 1.0f) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = uniform(low, high);
    return values;
  }
  std::vector<Half> halves(std::int64_t count, float low = -1.0f, float high = 1.0f) {
    std::vector<Half> values(static_cast<std::size_t>(count));
    for (Half& value : values) value = to_half(uniform(low, high));
    return values;
  }

 private:
  std::mt19937 engine_;
};

template <typename T>
Buffer to_device(Backend& backend, const std::vector<T>& values) {
  Buffer buffer = backend.allocate(values.size() * sizeof(T));
  backend.upload(buffer.template as<T>(), values.data(), values.size() * sizeof(T));
  return buffer;
}

template <typename T>
std::vector<T> to_host(Backend& backend, const Buffer& buffer, std::size_t count) {
  std::vector<T> values(count);
  backend.download(values.data(), buffer.as<T>(), count * sizeof(T));
  return values;
}

}  // namespace leeway::kernels::test
