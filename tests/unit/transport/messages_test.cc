// Wire messages: round trips, and everything that a peer could send instead.
#include "transport/messages.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "transport/outbox.h"

namespace leeway::transport {
namespace {

const Sender kSender{.job = 0x1122334455667788, .incarnation = Incarnation(9), .id = 3};

std::shared_ptr<const RemoteMemory> windows(std::size_t n) {
  auto memory = std::make_shared<RemoteMemory>();
  for (std::size_t i = 0; i < n; ++i)
    memory->push_back({0x7F0000000000 + i, 0xFEDCBA9876543210 - i});
  return memory;
}

Push some_push(std::size_t n) {
  Push push{.clock = Clock(7), .memory = windows(2)};
  for (std::size_t i = 0; i < n; ++i)
    push.entries.push_back({.partition = PartitionId(static_cast<std::uint32_t>(i)),
                            .scale = 1024.0f / static_cast<float>(i + 1),
                            .offset = 0x7F0000000000 + i * 4096,
                            .bytes = 1 + i,
                            .codec = i % 2 == 0 ? Codec::kF16 : Codec::kF32,
                            .initial = i % 3 == 0});
  return push;
}

// Every second payload is in the message.
Push some_inline_push(std::size_t n) {
  Push push = some_push(n);
  for (std::size_t i = 1; i < n; i += 2) {
    push.entries[i].initial = false;
    push.entries[i].inlined = true;
    if (i == 1) push.entries[i].checksum = 0xCAFEF00D;
    for (std::size_t k = 0; k < push.entries[i].bytes; ++k)
      push.payload.push_back(static_cast<std::byte>(i));
  }
  return push;
}

Pull some_pull(std::size_t n) {
  Pull pull{.clock = Clock(8),
            .request = 5,
            .staleness = kUnboundedStaleness,
            .total = 100,
            .memory = windows(1)};
  for (std::size_t i = 0; i < n; ++i)
    pull.entries.push_back({PartitionId(static_cast<std::uint32_t>(i)), Version(i * i), i << 33});
  return pull;
}

Pulled some_pulled(std::size_t n) {
  Pulled pulled{.clock = Clock(8), .request = 5, .slowest = Clock(6), .total = 100};
  for (std::size_t i = 0; i < n; ++i)
    pulled.entries.push_back({PartitionId(static_cast<std::uint32_t>(i)), Version(i + 1)});
  return pulled;
}

Norms some_norms(std::size_t n) {
  Norms norms{.clock = Clock(8)};
  for (std::size_t i = 0; i < n; ++i) {
    norms.entries.push_back({TensorId(static_cast<std::uint32_t>(i)), {}});
    norms.entries.back().sums.weights.add(0.5 + static_cast<double>(i));
    norms.entries.back().sums.changes.add(1e-30);
  }
  return norms;
}

std::vector<std::byte> state(std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

std::vector<Body> one_of_each() {
  return {some_push(3),
          some_inline_push(5),
          PushTaken{Clock(7), {PartitionId(1), PartitionId(UINT32_MAX)}},
          Commit{Clock(7), Ending::kCommit, 64, state(17)},
          Commit{Clock(7), Ending::kCommit, 64, {}, 0.25f},
          Commit{Clock(7), Ending::kAbandon, 64, {}},
          Commit{Clock(0), Ending::kInitial, 0, {}},
          Committed{Clock(7), Ending::kAbandon},
          some_pull(2),
          some_pulled(2),
          Refused{Code::kRefused, "worker 3 is of another job"},
          some_norms(2)};
}

void set(std::vector<std::byte>& bytes, std::size_t at, std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
}

std::string error_of(const std::vector<std::byte>& bytes) {
  const auto message = decode(bytes);
  REQUIRE_FALSE(message.has_value());
  CHECK(message.error().message.find('\n') == std::string::npos);
  return message.error().message;
}

}  // namespace

TEST_CASE("the header lies where the documentation says") {
  const auto bytes = encode(kSender, Committed{Clock(0x0A0B), Ending::kInitial});
  const unsigned char expected[] = {'L',  'W',  'Y',  '1',  7,    0, 6,  0, 0x88, 0x77, 0x66,
                                    0x55, 0x44, 0x33, 0x22, 0x11, 9, 0,  0, 0,    0,    0,
                                    0,    0,    3,    0,    0,    0, 10, 0, 0,    0,    0x0B,
                                    0x0A, 0,    0,    0,    0,    0, 0,  5, 0};
  REQUIRE(bytes.size() == sizeof expected);
  CHECK(std::memcmp(bytes.data(), expected, sizeof expected) == 0);
}

TEST_CASE("every message comes back as it was") {
  for (const Body& body : one_of_each()) {
    const auto bytes = encode(kSender, body);
    const auto message = decode(bytes);
    REQUIRE(message.has_value());
    CHECK(message->sender.job == kSender.job);
    CHECK(message->sender.incarnation == kSender.incarnation);
    CHECK(message->sender.id == kSender.id);
    CHECK(message->body.index() == body.index());
    CHECK(encode(message->sender, message->body) == bytes);
  }
}

TEST_CASE("fields of a push and a pull keep their values") {
  const auto push = std::get<Push>(decode(encode(kSender, some_push(4)))->body);
  REQUIRE(push.entries.size() == 4);
  CHECK(push.clock == Clock(7));
  CHECK(*push.memory == *windows(2));
  CHECK(push.entries[3].partition == PartitionId(3));
  CHECK(push.entries[3].scale == 256.0f);
  CHECK(push.entries[3].offset == 0x7F0000003000);
  CHECK(push.entries[3].bytes == 4);
  CHECK(push.entries[3].codec == Codec::kF32);
  CHECK(push.entries[3].initial);
  CHECK_FALSE(push.entries[2].initial);
  CHECK_FALSE(push.entries[2].checksum.has_value());
  const auto inlined = std::get<Push>(decode(encode(kSender, some_inline_push(2)))->body);
  CHECK(inlined.entries[1].inlined);
  CHECK(inlined.entries[1].checksum == 0xCAFEF00D);
  CHECK(inlined.payload.size() == 2);

  const auto pull = std::get<Pull>(decode(encode(kSender, some_pull(3)))->body);
  CHECK(pull.request == 5);
  CHECK(pull.staleness == kUnboundedStaleness);
  CHECK(pull.total == 100);
  CHECK(*pull.memory == *windows(1));
  CHECK(pull.entries.at(2).have == Version(4));
  CHECK(pull.entries.at(2).offset == std::uint64_t{2} << 33);

  const auto pulled = std::get<Pulled>(decode(encode(kSender, some_pulled(2)))->body);
  CHECK(pulled.slowest == Clock(6));
  CHECK(pulled.total == 100);
  CHECK(pulled.entries.at(1).version == Version(2));

  const auto norms = std::get<Norms>(decode(encode(kSender, some_norms(2)))->body);
  CHECK(norms.clock == Clock(8));
  CHECK(norms.entries.at(1).tensor == TensorId(1));
  CHECK(norms.entries[1].sums == some_norms(2).entries[1].sums);
  CHECK(norms.entries[1].sums.weights.value() == 1.5);

  const auto commit = std::get<Commit>(
      decode(encode(kSender, Commit{Clock(3), Ending::kAbandon, 32, state(5)}))->body);
  CHECK(commit.ending == Ending::kAbandon);
  CHECK(commit.samples == 32);
  CHECK(commit.worker_state == state(5));
}

TEST_CASE("every truncation and every trailing byte is refused") {
  for (const Body& body : one_of_each()) {
    const auto bytes = encode(kSender, body);
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      auto cut = std::vector(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
      CHECK_FALSE(decode(cut).has_value());
      // The same with a header that admits the shorter body.
      if (n >= 32) {
        set(cut, 28, n - 32, 4);
        CHECK_FALSE(decode(cut).has_value());
      }
    }
    auto longer = bytes;
    longer.push_back(std::byte{0});
    CHECK_FALSE(decode(longer).has_value());
    set(longer, 28, longer.size() - 32, 4);
    CHECK_FALSE(decode(longer).has_value());
  }
}

TEST_CASE("counts that lie are refused before anything is allocated") {
  struct At {
    Body body;
    std::size_t offset;  // of the count
  };
  const At cases[] = {{some_push(2), 32 + 41},
                      {PushTaken{Clock(1), {PartitionId(1)}}, 32 + 8},
                      {some_pull(2), 32 + 37},
                      {some_pulled(2), 32 + 28},
                      {some_norms(2), 32 + 8}};
  for (const At& c : cases)
    for (const std::uint32_t lie : {0u, 1u, 3u, 0x10000u, 0x80000000u, 0xFFFFFFFFu}) {
      auto bytes = encode(kSender, c.body);
      std::uint32_t now = 0;
      std::memcpy(&now, bytes.data() + c.offset, 4);
      if (now == lie) continue;
      set(bytes, c.offset, lie, 4);
      CHECK_FALSE(decode(bytes).has_value());
    }
  // A request that has fewer entries in all than this message alone.
  auto pull = encode(kSender, some_pull(2));
  set(pull, 32 + 16, 1, 4);
  CHECK(error_of(pull).find("request has 1") != std::string::npos);
  auto pulled = encode(kSender, some_pulled(2));
  set(pulled, 32 + 24, 1, 4);
  CHECK(error_of(pulled).find("answer has 1") != std::string::npos);
}

TEST_CASE("windows that are not there, or more than rails can be, are refused") {
  for (const unsigned lie : {0u, 1u, 3u, 65u, 255u}) {
    CAPTURE(lie);
    auto push = encode(kSender, some_push(2));
    set(push, 32 + 8, lie, 1);
    CHECK_FALSE(decode(push).has_value());
  }
  Push none{.clock = Clock(1)};
  CHECK(std::get<Push>(decode(encode(kSender, none))->body).memory->empty());
}

TEST_CASE("wrong values are refused by name") {
  const auto good = encode(kSender, some_push(1));
  auto bytes = good;
  set(bytes, 0, 0x20505448, 4);  // "HTP "
  CHECK(error_of(bytes).find("not a Leeway process") != std::string::npos);
  bytes = good;
  set(bytes, 4, 1, 2);
  CHECK(error_of(bytes).find("wire version 1, this process 7") != std::string::npos);
  CHECK(decode(bytes).error().code == Code::kUnsupported);
  for (const std::uint64_t type : {0u, 11u, 65535u}) {
    bytes = good;
    set(bytes, 6, type, 2);
    CHECK(error_of(bytes).find("unknown type") != std::string::npos);
  }
  for (const float scale : {0.0f, -1.0f, INFINITY, -INFINITY, NAN}) {
    Push push = some_push(1);
    push.entries[0].scale = scale;
    CHECK(error_of(encode(kSender, push)).find("scale") != std::string::npos);
  }
  const std::size_t codec = 32 + 45 + 24;
  for (const std::uint64_t value : {0u, 8u, 255u}) {
    bytes = good;
    set(bytes, codec, value, 1);
    CHECK(error_of(bytes).find("codec") != std::string::npos);
  }
  bytes = good;
  set(bytes, codec + 2, 1, 1);  // a checksum that no flag announces
  CHECK(error_of(bytes).find("flags") != std::string::npos);
  set(bytes, codec + 2, 0, 1);
  set(bytes, codec + 1, 3, 1);
  CHECK(error_of(bytes).find("flags") != std::string::npos);
  Push short_of_payload = some_inline_push(4);
  short_of_payload.payload.pop_back();
  CHECK(error_of(encode(kSender, short_of_payload)).find("lacks its 4 bytes") != std::string::npos);
  Push sums_up_to_nothing = some_inline_push(4);  // modulo 2^64
  sums_up_to_nothing.entries[1].bytes = UINT64_MAX - 3;
  CHECK_FALSE(decode(encode(kSender, sums_up_to_nothing)).has_value());
  bytes = encode(kSender, Committed{Clock(1), Ending::kCommit});
  for (const std::uint64_t type : {0u, 2u, 6u}) {
    set(bytes, 32 + 8, type, 2);
    CHECK(error_of(bytes).find("ends no step") != std::string::npos);
  }
  bytes = encode(kSender, Refused{Code::kRefused, "no"});
  set(bytes, 32, 999, 2);
  CHECK(error_of(bytes).find("code 999") != std::string::npos);
  for (const float factor : {0.0f, -1.0f, 1.5f, std::nanf(""), HUGE_VALF})
    CHECK(error_of(encode(kSender, Commit{Clock(1), Ending::kCommit, 1, {}, factor}))
              .find("factor") != std::string::npos);
  // More state than anybody may send.
  bytes = encode(kSender, Commit{Clock(1), Ending::kCommit, 1, state(kMaxWorkerState)});
  CHECK(decode(bytes).has_value());
  bytes.push_back(std::byte{0});
  set(bytes, 28, bytes.size() - 32, 4);
  set(bytes, 32 + 16, kMaxWorkerState + 1, 2);
  CHECK(error_of(bytes).find("worker state") != std::string::npos);
}

TEST_CASE("the text of a refusal is one printable line") {
  const auto message = decode(encode(kSender, Refused{Code::kRefused, "a\nb\x1b[2Jc"}));
  REQUIRE(message.has_value());
  CHECK(std::get<Refused>(message->body).text == "a b [2Jc");
  const auto longest = encode(kSender, Refused{Code::kRefused, std::string(100000, 'x')});
  CHECK(longest.size() < 2048);
  CHECK(decode(longest).has_value());
}

TEST_CASE("as many entries as promised fit a message, and not one more") {
  for (const std::size_t limit : {100u, 1024u, 8192u}) {
    const auto check = [&](std::size_t n, auto make) {
      CHECK(encode(kSender, make(n)).size() <= limit);
      CHECK(encode(kSender, make(n + 1)).size() > limit);
    };
    check(max_push_entries(limit, 2), some_push);
    check(max_pull_entries(limit, 1), some_pull);
    check(max_pulled_entries(limit), some_pulled);
    check(max_norms_entries(limit), some_norms);
    check(max_push_taken_entries(limit), [](std::size_t n) {
      return PushTaken{Clock(1), std::vector<PartitionId>(n)};
    });
  }
  CHECK(max_push_entries(0, 1) == 0);
  CHECK(max_pull_entries(40, 1) == 0);
}

TEST_CASE("payloads fit beside the entries as promised, and not one byte more") {
  Push push = some_push(3);
  push.entries[1].initial = false;
  push.entries[1].inlined = true;
  push.payload = state(inline_room(1024, 2, 3));
  push.entries[1].bytes = push.payload.size();
  CHECK(encode(kSender, push).size() == 1024);
  CHECK(decode(encode(kSender, push)).has_value());
  CHECK(inline_room(50, 1, 1) == 0);
}

TEST_CASE("a frame holds messages in their order, and ends at the first that is broken") {
  std::vector<std::byte> bytes;
  for (const Body& body : one_of_each()) {
    const auto message = encode(kSender, body);
    bytes.insert(bytes.end(), message.begin(), message.end());
  }
  std::span<const std::byte> frame = bytes;
  for (const Body& body : one_of_each()) {
    const auto message = decode_next(frame);
    REQUIRE(message.has_value());
    CHECK(encode(message->sender, message->body) == encode(kSender, body));
  }
  CHECK(frame.empty());
  CHECK_FALSE(decode(bytes).has_value());  // that is for one alone
  bytes[encode(kSender, one_of_each()[0]).size()] = std::byte{0};
  frame = bytes;
  CHECK(decode_next(frame).has_value());
  CHECK_FALSE(frame.empty());
  CHECK_FALSE(decode_next(frame).has_value());
  CHECK(frame.empty());
}

TEST_CASE("an outbox gathers what goes to one receiver, in order, up to a frame's size") {
  std::vector<std::pair<std::uint32_t, std::size_t>> sent;
  Outbox outbox(100, [&](std::uint32_t to, const Outbox::Frame& frame) {
    sent.emplace_back(to, frame.size());
  });
  CHECK(outbox.add(7, state(60)));
  CHECK_FALSE(outbox.add(3, state(10)));
  CHECK_FALSE(outbox.add(3, state(20)));
  CHECK(sent.empty());
  CHECK_FALSE(outbox.add(7, state(41)));
  CHECK(sent == std::vector<std::pair<std::uint32_t, std::size_t>>{{7, 60}});
  sent.clear();
  outbox.flush();
  CHECK(sent == std::vector<std::pair<std::uint32_t, std::size_t>>{{3, 30}, {7, 41}});
  sent.clear();
  outbox.flush();
  CHECK(sent.empty());
  CHECK(outbox.add(3, state(1)));
}

TEST_CASE("random mutations never break the decoder") {
  constexpr std::uint64_t kSeed = 20240611;
  INFO("seed " << kSeed);
  std::mt19937_64 random(kSeed);
  const auto bodies = one_of_each();
  std::size_t accepted = 0;
  for (int i = 0; i < 200'000; ++i) {
    auto bytes = encode(kSender, bodies[random() % bodies.size()]);
    for (std::uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
      switch (random() % 4) {
        case 0:
          bytes[random() % bytes.size()] = static_cast<std::byte>(random());
          break;
        case 1:
          bytes[random() % bytes.size()] ^= std::byte{1} << (random() % 8);
          break;
        case 2:
          bytes.resize(1 + random() % (bytes.size() + 8));
          break;
        default:
          if (bytes.size() >= 32) set(bytes, 28, bytes.size() - 32, 4);
      }
    }
    // What is accepted must be exactly what would be sent for it (texts are cleaned, so not those).
    if (const auto message = decode(bytes)) {
      ++accepted;
      if (!std::holds_alternative<Refused>(message->body))
        REQUIRE(encode(message->sender, message->body) == bytes);
    }
  }
  CHECK(accepted > 1000);  // the loop reaches beyond the header
}

}  // namespace leeway::transport
