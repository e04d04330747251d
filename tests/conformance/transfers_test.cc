// Reads and writes: every kind of size and alignment, in several pieces, many at once.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/conformance/node.h"

namespace leeway::conformance {
namespace {

// A transfer of `size` bytes from one odd place to another, seen at the target, with its
// surroundings.
void check_size(Node& a, Node& b, Peer to_b, std::size_t size) {
  CAPTURE(size);
  constexpr std::size_t kAround = 64;
  const RegisteredMemory here = a.memory(size + 2 * kAround), there = b.memory(size + 2 * kAround);
  for (const bool write : {true, false}) {
    CAPTURE(write);
    const RegisteredMemory& source = write ? here : there;
    const RegisteredMemory& target = write ? there : here;
    fill(source, size + 1);
    fill(target, size + 2);
    std::vector<std::byte> expected(target.bytes().begin(), target.bytes().end());
    const std::size_t source_at = 13, target_at = 37;
    std::copy_n(source.bytes().data() + source_at, size, expected.data() + target_at);
    const Outcome outcome = write ? a.write(to_b, {&here, source_at, size}, at(there, target_at))
                                  : a.read(to_b, {&here, target_at, size}, at(there, source_at));
    REQUIRE_MESSAGE(outcome.status.has_value(), outcome.status.error().message);
    CHECK(outcome.memory_released);
    CHECK(std::ranges::equal(target.bytes(), expected));
  }
}

// More than 4 GiB that cost little: the same 51 MiB, a length that divides no power of two, mapped
// again and again, but for the places where lengths of 31 and 32 bits end, and both ends.
class SparseMemory {
 public:
  struct Place {
    std::size_t begin, size;
  };
  static constexpr std::size_t kMiB = std::size_t{1} << 20;
  static constexpr std::size_t kPattern = 51 * kMiB;
  static constexpr std::size_t kSize = 4096 * kMiB + 3 * kMiB + 4097;
  static constexpr Place kPlaces[] = {{0, kMiB},
                                      {2047 * kMiB, 2 * kMiB},
                                      {4095 * kMiB, 2 * kMiB},
                                      {4098 * kMiB, kSize - 4098 * kMiB}};

  SparseMemory() {
    const int pattern = memfd_create("pattern", MFD_CLOEXEC);
    REQUIRE(ftruncate(pattern, kPattern) == 0);
    data_ = static_cast<std::byte*>(map(nullptr, kSize, MAP_PRIVATE | MAP_NORESERVE, -1));
    for (std::size_t begin = 0; begin < kSize; begin += kPattern)
      map(data_ + begin, std::min(kPattern, kSize - begin), MAP_SHARED | MAP_FIXED, pattern);
    close(pattern);
    fill(bytes().first(kPattern), 77);
    for (const Place& place : kPlaces)
      map(data_ + place.begin, place.size, MAP_PRIVATE | MAP_FIXED, -1);
  }
  ~SparseMemory() { munmap(data_, kSize); }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  std::span<std::byte> bytes() const { return {data_, kSize}; }
  void fill_places(std::uint64_t seed) const {
    for (const Place& place : kPlaces)
      fill(bytes().subspan(place.begin, place.size), place.begin + seed);
  }

 private:
  static void* map(void* at, std::size_t size, int flags, int descriptor) {
    void* const mapped = mmap(at, size, PROT_READ | PROT_WRITE,
                              flags | (descriptor < 0 ? MAP_ANONYMOUS : 0), descriptor, 0);
    REQUIRE(mapped != MAP_FAILED);
    return mapped;
  }
  std::byte* data_ = nullptr;
};

}  // namespace

TEST_CASE("reads and writes of every kind of size, and nothing beside them is touched") {
  Node a, b;
  const Peer to_b = a.connect(b);
  std::uint64_t moved = 0;
  for (const std::size_t size :
       {0,    1,    2,    3,    7,    8,     9,     63,     64,     65,      127,          129,
        4095, 4096, 4097, 8191, 8193, 65535, 65537, 262143, 262145, 1 << 20, (4 << 20) + 1}) {
    check_size(a, b, to_b, size);
    moved += size;
  }
  CHECK(a.endpoint->counters().bytes_read == moved);
  CHECK(a.endpoint->counters().bytes_written == moved);
}

TEST_CASE("transfers longer than goes at once, around each boundary of the pieces") {
  constexpr std::size_t kPiece = 1000;
  Node a({.max_transfer = kPiece}), b;
  const Peer to_b = a.connect(b);
  for (const std::size_t pieces : {1, 2, 3, 64})
    for (const std::size_t size : {pieces * kPiece - 1, pieces * kPiece, pieces * kPiece + 1})
      check_size(a, b, to_b, size);
  CHECK(a.endpoint->counters().bytes_read == a.endpoint->counters().bytes_written);
}

TEST_CASE("every alignment of the local and the remote offset") {
  constexpr std::size_t kSlot = 256, kSize = 131;
  Node a, b;
  const Peer to_b = a.connect(b);
  const RegisteredMemory source = a.memory(64 * 64 * kSlot), there = b.memory(64 * 64 * kSlot),
                         back = a.memory(64 * 64 * kSlot);
  fill(source, 1);
  const auto run = [&](bool write) {
    Tally tally;
    a.on_thread([&] {
      for (std::size_t local = 0; local < 64; ++local)
        for (std::size_t remote = 0; remote < 64; ++remote) {
          const std::size_t slot = (local * 64 + remote) * kSlot;
          if (write)
            a.endpoint->write(to_b, {&source, slot + local, kSize}, at(there, slot + remote),
                              soon(), tally.next());
          else
            a.endpoint->read(to_b, {&back, slot + local, kSize}, at(there, slot + remote), soon(),
                             tally.next());
        }
      return 0;
    });
    CHECK(tally.all_ended());
    CHECK_MESSAGE(tally.good() == 64 * 64, tally.first_error());
  };
  run(true);
  run(false);
  std::size_t wrong_there = 0, wrong_back = 0, touched = 0;
  for (std::size_t local = 0; local < 64; ++local)
    for (std::size_t remote = 0; remote < 64; ++remote) {
      const std::size_t slot = (local * 64 + remote) * kSlot;
      const std::byte* sent = source.bytes().data() + slot + local;
      const std::byte* target = there.bytes().data() + slot;
      wrong_there += std::memcmp(sent, target + remote, kSize) != 0;
      wrong_back += std::memcmp(sent, back.bytes().data() + slot + local, kSize) != 0;
      for (std::size_t i = 0; i < kSlot; ++i)
        touched += (i < remote || i >= remote + kSize) && target[i] != std::byte{0};
    }
  CHECK(wrong_there == 0);
  CHECK(wrong_back == 0);
  CHECK(touched == 0);
}

TEST_CASE("a write that is complete is seen at the target") {
  constexpr std::size_t kRounds = 300, kMost = 100'000;
  Node a, b;
  const Peer to_b = a.connect(b);
  const RegisteredMemory here = a.memory(kMost), there = b.memory(kMost);
  std::size_t unseen = 0, round = 0;
  std::promise<void> over;
  // On the initiator's own thread, the moment that the completion comes.
  std::function<void()> next = [&] {
    const std::size_t size = 1 + (round * 7919) % kMost;
    fill(here.bytes().first(size), round);
    a.endpoint->write(to_b, {&here, 0, size}, at(there), soon(), [&, size](Outcome outcome) {
      unseen +=
          !outcome.status || std::memcmp(here.bytes().data(), there.bytes().data(), size) != 0;
      if (++round < kRounds)
        next();
      else
        over.set_value();
    });
  };
  a.endpoint->post([&] { next(); });
  over.get_future().wait();
  CHECK(unseen == 0);
}

TEST_CASE("T7: both directions at once, 64 MiB of reads and writes each") {
  const std::size_t each = std::size_t{fabric().slow() ? 64u : 1024u} << 10;
  constexpr std::size_t kCount = 32;
  const std::size_t all = each * kCount;
  Node a, b;
  struct Side {
    Node& node;
    Peer peer;
    RegisteredMemory source, written, read;
  };
  Side sides[] = {{a, a.connect(b), a.memory(all), a.memory(all), a.memory(all)},
                  {b, b.connect(a), b.memory(all), b.memory(all), b.memory(all)}};
  fill(sides[0].source, 1);
  fill(sides[1].source, 2);
  Tally tally;
  for (const int i : {0, 1}) {
    Side &me = sides[i], &other = sides[1 - i];
    me.node.on_thread([&] {
      for (std::size_t place = 0; place < all; place += each) {
        me.node.endpoint->write(me.peer, {&me.source, place, each}, at(other.written, place),
                                soon(), tally.next());
        me.node.endpoint->read(me.peer, {&me.read, place, each}, at(other.source, place), soon(),
                               tally.next());
      }
      return 0;
    });
  }
  REQUIRE(tally.all_ended());
  CHECK_MESSAGE(tally.good() == 4 * kCount, tally.first_error());
  for (const int i : {0, 1}) {
    CHECK(same(sides[i].source, sides[1 - i].written));
    CHECK(same(sides[i].source, sides[1 - i].read));
  }
}

TEST_CASE("ten thousand operations in flight, each ends once") {
  constexpr std::size_t kSize = 48;
  const std::size_t count = fabric().slow() ? 1000 : 10'000;
  Node a, b;
  const Peer to_b = a.connect(b);
  const RegisteredMemory source = a.memory(count * kSize), there = b.memory(count * kSize),
                         from = b.memory(count * kSize), here = a.memory(count * kSize);
  fill(source, 1);
  fill(from, 2);
  Tally tally;
  std::size_t messages = 0;
  a.on_thread([&] {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t place = i * kSize;
      const std::string text = std::to_string(i);
      switch (i % 5) {
        case 0:
          a.endpoint->send(to_b, std::as_bytes(std::span(text)), soon(), tally.next());
          ++messages;
          break;
        case 1:
        case 2:
          a.endpoint->read(to_b, {&here, place, kSize}, at(from, place), soon(), tally.next());
          break;
        default:
          a.endpoint->write(to_b, {&source, place, kSize}, at(there, place), soon(), tally.next());
      }
    }
    return 0;
  });
  REQUIRE(tally.all_ended());
  CHECK_MESSAGE(tally.good() == count, tally.first_error());
  CHECK(b.has_received(messages));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool read = i % 5 == 1 || i % 5 == 2, write = i % 5 > 2;
    const auto part = [&](const RegisteredMemory& memory) {
      return memory.bytes().data() + i * kSize;
    };
    wrong += read && std::memcmp(part(here), part(from), kSize) != 0;
    wrong += write && std::memcmp(part(there), part(source), kSize) != 0;
  }
  CHECK(wrong == 0);
  CHECK(tally.twice() == 0);
}

TEST_CASE("32 endpoints of one process, each with four others and one with all") {
  constexpr std::size_t kSize = 5001;
  const std::size_t count = fabric().slow() ? 6 : 32;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<RegisteredMemory> sources, targets;
  for (std::size_t i = 0; i < count; ++i) {
    nodes.push_back(
        std::make_unique<Node>(OpenOptions{.peers = static_cast<std::uint32_t>(count)}));
    sources.push_back(nodes[i]->memory(kSize));
    targets.push_back(nodes[i]->memory(kSize * count));  // one place for each writer
    fill(sources[i], i);
  }
  Tally tally;
  std::vector<std::vector<std::size_t>> writers(count);
  const auto write = [&](std::size_t from, std::size_t to) {
    const Peer peer = nodes[from]->connect(*nodes[to]);
    nodes[from]->endpoint->post([&, from, to, peer] {
      Endpoint& endpoint = *nodes[from]->endpoint;
      endpoint.write(peer, {&sources[from], 0, kSize}, at(targets[to], from * kSize), soon(),
                     tally.next());
      const std::string text = std::to_string(from);
      endpoint.send(peer, std::as_bytes(std::span(text)), soon(), tally.next());
    });
    writers[to].push_back(from);
  };
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t step = 1; step <= 4; ++step) write(i, (i + step) % count);
  for (std::size_t i = 5; i < count; ++i) write(0, i);
  for (auto& node : nodes) node->settle();
  REQUIRE(tally.all_ended());
  CHECK_MESSAGE(tally.good() == tally.begun(), tally.first_error());
  for (std::size_t i = 0; i < count; ++i) {
    CAPTURE(i);
    CHECK(nodes[i]->has_received(writers[i].size()));
    bool right = true;
    for (const std::size_t writer : writers[i])
      right &= std::ranges::equal(targets[i].bytes().subspan(writer * kSize, kSize),
                                  sources[writer].bytes());
    CHECK(right);
  }
}

TEST_CASE("memory is aligned, zeroed and outlives its endpoint") {
  RegisteredMemory kept;
  {
    Node node;
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{5'000'000}}) {
      kept = node.memory(size);
      CHECK(kept.bytes().size() == size);
      CHECK(reinterpret_cast<std::uintptr_t>(kept.bytes().data()) % 4096 == 0);
      CHECK(std::ranges::all_of(kept.bytes(), [](std::byte b) { return b == std::byte{0}; }));
    }
    const auto refused = node.endpoint->allocate(std::size_t{1} << 60, transport::Access::kPeers);
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == Code::kResourceExhausted);
  }
  REQUIRE(kept.bytes().size() > 0);
  kept.bytes()[0] = std::byte{1};
}

// More than 4 GiB to move, of which 4 GiB on one side are real: in the suite `soak` alone.
TEST_CASE("huge: more than 4 GiB in one read and one write" * doctest::skip()) {
  Node a, b;
  const Peer to_b = a.connect(b);
  const SparseMemory sparse;
  const RegisteredMemory there = b.memory(SparseMemory::kSize + 1);
  const TimePoint deadline = MonotonicClock::now() + std::chrono::minutes(10);
  const RegisteredMemory here = value_or_throw(a.endpoint->enlist(
      {.data = sparse.bytes().data(), .size = SparseMemory::kSize}, transport::Access::kOwn));
  sparse.fill_places(1);
  Outcome outcome = a.write(to_b, {&here, 0, SparseMemory::kSize}, at(there), deadline);
  REQUIRE_MESSAGE(outcome.status.has_value(), outcome.status.error().message);
  CHECK(std::ranges::equal(sparse.bytes(), there.bytes().first(SparseMemory::kSize)));
  CHECK(there.bytes()[SparseMemory::kSize] == std::byte{0});

  const auto here_at = [&](const auto& place) {
    return sparse.bytes().subspan(place.begin, place.size);
  };
  const auto there_at = [&](const auto& place) {
    return there.bytes().subspan(place.begin, place.size);
  };
  for (const auto& place : SparseMemory::kPlaces) fill(there_at(place), place.begin + 3);
  outcome = a.read(to_b, {&here, 0, SparseMemory::kSize}, at(there), deadline);
  REQUIRE_MESSAGE(outcome.status.has_value(), outcome.status.error().message);
  for (const auto& place : SparseMemory::kPlaces)
    CHECK(std::ranges::equal(here_at(place), there_at(place)));
}

}  // namespace leeway::conformance
