// A vector loop's last elements and its non-temporal stores.
//
// Tails go through a padded vector on the stack, not through a scalar loop: the same instructions
// serve all elements, so the bits cannot depend on where a range was cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace leeway::kernels::simd {

// Results of at least this many bytes bypass the caches: they are next read by a network device, or
// by another process long after they would have been evicted.
constexpr std::size_t kStreamBytes = std::size_t{1} << 18;

template <typename V, typename T>
struct Padded {
  alignas(64) T values[V::kWidth] = {};
  Padded() = default;
  Padded(const T* from, std::size_t count) { std::memcpy(values, from, count * sizeof(T)); }
  void copy_to(T* to, std::size_t count) const { std::memcpy(to, values, count * sizeof(T)); }
};

// Elements before `p` is aligned for a vector of V::kWidth elements of `element_bytes`; at most
// `elements`. p must be aligned to its element.
template <typename V>
std::size_t elements_to_alignment(const void* p, std::size_t element_bytes, std::size_t elements) {
  const std::size_t vector_bytes = V::kWidth * element_bytes;
  const std::size_t beyond = reinterpret_cast<std::uintptr_t>(p) % vector_bytes;
  const std::size_t head = beyond == 0 ? 0 : (vector_bytes - beyond) / element_bytes;
  return head < elements ? head : elements;
}

}  // namespace leeway::kernels::simd
