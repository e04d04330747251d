#include "kernels/cast.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "kernels/cpu_kernels.h"
#include "kernels/scalar.h"

namespace leeway::kernels {
namespace scalar {

bool scale_to_half(const float* in, std::size_t elements, float scale, Half* out) {
  bool finite = true;
  for (std::size_t i = 0; i < elements; ++i) {
    out[i] = to_half(in[i] * scale);
    finite &= (out[i].bits & 0x7C00u) != 0x7C00u;
  }
  return finite;
}

void narrow(const float* in, std::size_t elements, Dtype dtype, std::byte* out) {
  if (dtype == Dtype::kF16) {
    auto* halves = reinterpret_cast<Half*>(out);
    for (std::size_t i = 0; i < elements; ++i) halves[i] = to_half(in[i]);
  } else {
    auto* halves = reinterpret_cast<Bfloat16*>(out);
    for (std::size_t i = 0; i < elements; ++i) halves[i] = to_bfloat16(in[i]);
  }
}

void widen(const std::byte* in, std::size_t elements, Dtype dtype, float* out) {
  if (dtype == Dtype::kF16) {
    const auto* halves = reinterpret_cast<const Half*>(in);
    for (std::size_t i = 0; i < elements; ++i) out[i] = to_float(halves[i]);
  } else {
    const auto* halves = reinterpret_cast<const Bfloat16*>(in);
    for (std::size_t i = 0; i < elements; ++i) out[i] = to_float(halves[i]);
  }
}

}  // namespace scalar

bool scale_to_half(std::span<const float> in, float scale, Half* out) {
  return cpu_kernels().scale_to_half(in.data(), in.size(), scale, out);
}

void convert(std::span<const float> in, Dtype dtype, std::byte* out) {
  if (in.empty()) return;
  if (dtype == Dtype::kF32)
    std::memcpy(out, in.data(), in.size_bytes());
  else
    cpu_kernels().narrow(in.data(), in.size(), dtype, out);
}

void widen(const std::byte* in, Dtype dtype, std::span<float> out) {
  if (out.empty()) return;
  if (dtype == Dtype::kF32)
    std::memcpy(out.data(), in, out.size_bytes());
  else
    cpu_kernels().widen(in, out.size(), dtype, out.data());
}

void convert(std::size_t elements, const std::byte* in, Dtype from, std::byte* out, Dtype to) {
  if (from == Dtype::kF32) return convert({reinterpret_cast<const float*>(in), elements}, to, out);
  if (to == Dtype::kF32) return widen(in, from, {reinterpret_cast<float*>(out), elements});
  float wide[1024];
  for (std::size_t at = 0; at < elements; at += std::size(wide)) {
    const std::span<float> some(wide, std::min(std::size(wide), elements - at));
    widen(in + at * size_of(from), from, some);
    convert(some, to, out + at * size_of(to));
  }
}

}  // namespace leeway::kernels
