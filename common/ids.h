// Identities and counters as types of their own, so that a clock is never passed where a version
// belongs. All are plain integers on the wire.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace leeway {

template <typename Tag, typename Rep>
class Strong {
 public:
  using Underlying = Rep;
  constexpr Strong() noexcept = default;
  explicit constexpr Strong(Rep value) noexcept : value_(value) {}
  constexpr Rep value() const noexcept { return value_; }
  friend constexpr auto operator<=>(Strong, Strong) noexcept = default;

 private:
  Rep value_ = 0;
};

// A counter: an id that can also be advanced.
template <typename Tag>
class Counter64 : public Strong<Tag, std::uint64_t> {
 public:
  using Strong<Tag, std::uint64_t>::Strong;
  constexpr Counter64 next() const noexcept { return Counter64(this->value() + 1); }
};

using WorkerId = Strong<struct WorkerTag, std::uint32_t>;        // = rank
using ServerId = Strong<struct ServerTag, std::uint32_t>;        // 0 .. servers-1
using TensorId = Strong<struct TensorTag, std::uint32_t>;        // index in name order
using PartitionId = Strong<struct PartitionTag, std::uint32_t>;  // index over all tensors, in order
using Incarnation = Strong<struct IncarnationTag, std::uint64_t>;  // a process start
using Clock = Counter64<struct ClockTag>;      // steps that a worker has committed
using Version = Counter64<struct VersionTag>;  // updates that a partition has had
using Epoch = Counter64<struct EpochTag>;      // a membership view

}  // namespace leeway

template <typename Tag, typename Rep>
struct std::hash<leeway::Strong<Tag, Rep>> {
  std::size_t operator()(leeway::Strong<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value());
  }
};
template <typename Tag>
struct std::hash<leeway::Counter64<Tag>> {
  std::size_t operator()(leeway::Counter64<Tag> id) const noexcept {
    return std::hash<std::uint64_t>{}(id.value());
  }
};
