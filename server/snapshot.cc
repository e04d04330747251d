#include "server/snapshot.h"

#include <algorithm>
#include <utility>

namespace leeway::server {

Snapshot::Snapshot(TakeSnapshot cut, const Shard& shard, std::uint64_t aside_limit)
    : cut_(std::move(cut)), shard_(shard), aside_limit_(aside_limit), entries_(shard.partitions()) {
  for (LocalPartition p = 0; p < entries_.size(); ++p) {
    updates_ = shard.version(p).value() - 1;
    bytes_ += partition_bytes(p);
  }
}

std::uint64_t Snapshot::partition_bytes(LocalPartition p) const {
  return shard_.elements(p) * sizeof(float) * static_cast<std::uint64_t>(1 + shard_.state_arrays());
}

Snapshot::Claim Snapshot::claim(LocalPartition p) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[p];
  switch (entry.state) {
    case State::kUnwritten:
      break;
    case State::kWriting:
      return entry.aside ? Claim::kFree : Claim::kWait;
    case State::kCopying:
    case State::kCopied:
    case State::kWritten:
      return Claim::kFree;
  }
  if (aside_bytes_ + partition_bytes(p) > aside_limit_) return Claim::kWait;
  aside_bytes_ += partition_bytes(p);
  entry.state = State::kCopying;
  return Claim::kCopyFirst;
}

void Snapshot::copy_aside(LocalPartition p) {
  const std::uint64_t elements = shard_.elements(p);
  const int arrays = 1 + shard_.state_arrays();
  auto aside =
      std::make_unique_for_overwrite<float[]>(elements * static_cast<std::uint64_t>(arrays));
  std::ranges::copy(shard_.master(p), aside.get());
  for (int i = 0; i + 1 < arrays; ++i)
    std::ranges::copy(shard_.state(p, i),
                      aside.get() + elements * static_cast<std::uint64_t>(i + 1));
  const std::lock_guard lock(mutex_);
  if (entries_[p].state == State::kCopying) {  // else abandoned meanwhile
    entries_[p].aside = std::move(aside);
    entries_[p].state = State::kCopied;
  }
  copied_.notify_all();
}

std::vector<std::span<const float>> Snapshot::acquire(LocalPartition p) {
  std::unique_lock lock(mutex_);
  Entry& entry = entries_[p];
  copied_.wait(lock, [&] { return entry.state != State::kCopying; });
  entry.state = State::kWriting;
  std::vector<std::span<const float>> arrays;
  const std::uint64_t elements = shard_.elements(p);
  for (int i = 0; i <= shard_.state_arrays(); ++i) {
    if (entry.aside)
      arrays.emplace_back(entry.aside.get() + elements * static_cast<std::uint64_t>(i), elements);
    else if (i == 0)
      arrays.emplace_back(shard_.master(p));
    else
      arrays.emplace_back(shard_.state(p, i - 1));
  }
  return arrays;
}

void Snapshot::release(LocalPartition p) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[p];
  entry.state = State::kWritten;
  if (entry.aside) aside_bytes_ -= partition_bytes(p);
  entry.aside.reset();
}

void Snapshot::abandon() {
  const std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    entry.state = State::kWritten;
    entry.aside.reset();
  }
}

}  // namespace leeway::server
