// The rail over TCP, one frame at a time: peers that do not keep to the protocol cost their own
// connection, and what large transfers leave to the small frames between them.
#include "transport/stream_rail.h"

#include <doctest/doctest.h>
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <deque>
#include <numeric>
#include <optional>

#include "common/monotonic.h"
#include "transport/stream_frame.h"
#include "transport/stream_socket.h"

namespace leeway::transport::testing {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);

class StreamNode final : public RailUser {
 public:
  void message(std::span<const std::byte> bytes) override {
    messages.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void done(Ticket& ticket, Status status) override {
    auto& posted = reinterpret_cast<Posted&>(ticket);  // its first member
    ++posted.times;
    posted.status = std::move(status);
  }

  struct Posted {
    Ticket ticket;
    Status status;
    int times = 0;
  };
  Posted& next() { return posted.emplace_back(); }
  bool poll() { return rail.poll(*this); }

  std::deque<Posted> posted;
  std::vector<std::string> messages;
  StreamRail rail{{.address = "127.0.0.1"}};
};

template <typename Condition, typename... Nodes>
bool until(Condition condition, Nodes&... nodes) {
  const TimePoint end = MonotonicClock::now() + kPatience;
  while (!condition()) {
    if (MonotonicClock::now() > end) return false;
    if ((... + (nodes.poll() ? 1 : 0)) == 0) sched_yield();
  }
  return true;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

StreamHead hello(std::uint64_t incarnation) {
  return {.kind = StreamKind::kHello, .words = {kStreamMagic, incarnation, kStreamVersion}};
}

// A socket that says what it likes, and what came over it.
class Stranger {
 public:
  explicit Stranger(FileDescriptor socket) : socket_(std::move(socket)) {}
  explicit Stranger(const StreamNode& node)
      : socket_(value_or_throw(connect_to(address(node), address(node)))) {}
  static StreamAddress address(const StreamNode& node) {
    return *decode_stream_address(node.rail.info().address);
  }
  // Whom the node connects to.
  static Stranger called(const FileDescriptor& listener, StreamNode& node) {
    FileDescriptor accepted;
    CHECK(until(
        [&] {
          accepted.reset(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
          return static_cast<bool>(accepted);
        },
        node));
    Stranger made(std::move(accepted));
    CHECK(made.hears(node).kind == StreamKind::kHello);
    made.say(node, {.kind = StreamKind::kWelcome});
    return made;
  }
  static Stranger greeted(StreamNode& node) {
    Stranger made(node);
    made.say(node, hello(address(node).incarnation));
    CHECK(made.hears(node).kind == StreamKind::kWelcome);
    return made;
  }

  void say(StreamNode& node, const StreamHead& head, std::span<const std::byte> payload = {}) {
    say(node, EncodedHead(head).bytes());
    say(node, payload);
  }
  void say(StreamNode& node, std::span<const std::byte> bytes) {
    CHECK(until(
        [&] {
          const ssize_t n = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
          if (n > 0) bytes = bytes.subspan(static_cast<std::size_t>(n));
          return bytes.empty();
        },
        node));
  }
  // The next frame; its payload is in `payload`.
  StreamHead hears(StreamNode& node) {
    const auto head = hears_or_ends(node);
    CHECK(head);
    return head.value_or(StreamHead{});
  }
  // Nothing: the connection is over before another frame is whole.
  std::optional<StreamHead> hears_or_ends(StreamNode& node) {
    DecodedHead decoded;
    bool whole = false;
    CHECK(until(
        [&] {
          const bool open = hear(size_t{64} << 10);
          decoded = decode_head(heard_);
          whole = decoded.what == DecodedHead::What::kWhole &&
                  heard_.size() >= decoded.size + decoded.head.size;
          return whole || !open;
        },
        node));
    if (!whole) return std::nullopt;
    const auto begin = heard_.begin() + static_cast<std::ptrdiff_t>(decoded.size);
    payload.assign(begin, begin + decoded.head.size);
    heard_.erase(heard_.begin(), begin + decoded.head.size);
    return decoded.head;
  }
  bool thrown_out(StreamNode& node) {
    return until([&] { return !hear(4096); }, node) && heard_.empty();
  }

  std::vector<std::byte> payload;
  bool reset = false;  // it is over, and not in good order

 private:
  // False: it is over.
  bool hear(std::size_t most) {
    std::vector<std::byte> room(most);
    const ssize_t n = recv(socket_.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (n > 0) heard_.insert(heard_.end(), room.begin(), room.begin() + n);
    reset |= n < 0 && errno == ECONNRESET;
    return n > 0 || (n < 0 && errno == EAGAIN);
  }

  FileDescriptor socket_;
  std::vector<std::byte> heard_;
};

// A node that has a good peer, and must still have it afterwards.
struct Besieged {
  Besieged() : to_node(value_or_throw(good.rail.connect(node.rail.info().address))) {
    CHECK(says("here"));
    node.messages.clear();
  }
  ~Besieged() { CHECK(says("still here")); }

  bool says(const std::string& text) {
    auto& posted = good.next();
    return good.rail.send(to_node, bytes_of(text), posted.ticket).has_value() &&
           until([&] { return !node.messages.empty(); }, node, good) &&
           node.messages.back() == text;
  }

  StreamNode node, good;
  RailPeer to_node;
};

// Has all of our sockets while it lives, and is to keep no connection alive.
struct Child {
  Child() {
    REQUIRE(pid >= 0);
    while (pid == 0) pause();
  }
  ~Child() {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const pid_t pid = fork();
};

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> made(size);
  for (std::size_t i = 0; i < size; ++i) made[i] = static_cast<std::byte>(i * 7 + i / 251);
  return made;
}

}  // namespace

TEST_CASE("stream frames: what is encoded is decoded, and the rest is refused or awaited") {
  const StreamHead heads[] = {
      hello(77),
      {.kind = StreamKind::kWelcome},
      {.kind = StreamKind::kMessage, .size = kStreamMessage},
      {.kind = StreamKind::kRead, .words = {1, 2, 3, UINT64_MAX}},
      {.kind = StreamKind::kData, .size = kStreamChunk, .words = {9}},
      {.kind = StreamKind::kWrite, .last = true, .size = 5, .words = {1, 2, 3}},
      {.kind = StreamKind::kWritten, .words = {1}},
      {.kind = StreamKind::kRefused, .words = {1, 3}},
  };
  for (const StreamHead& head : heads) {
    const EncodedHead encoded(head);
    const DecodedHead decoded = decode_head(encoded.bytes());
    REQUIRE(decoded.what == DecodedHead::What::kWhole);
    CHECK(decoded.head == head);
    CHECK(decoded.size == encoded.bytes().size());
    for (std::size_t size = 0; size < encoded.bytes().size(); ++size)
      CHECK(decode_head(encoded.bytes().first(size)).what == DecodedHead::What::kShort);
    for (const std::size_t at : {0, 1, 2, 3, 7}) {
      std::vector<std::byte> wrong(encoded.bytes().begin(), encoded.bytes().end());
      wrong[at] = std::byte{0xee};
      CHECK(decode_head(wrong).what == DecodedHead::What::kWrong);
    }
  }
}

TEST_CASE("stream addresses: what is encoded is decoded, and nothing else") {
  StreamNode node;
  const auto address = node.rail.info().address;
  const auto decoded = decode_stream_address(address);
  REQUIRE(decoded);
  CHECK(encode(*decoded) == address);
  CHECK(decoded->printable() == node.rail.info().printable);
  for (std::size_t size = 0; size < address.size(); ++size)
    CHECK_FALSE(decode_stream_address(std::span(address).first(size)));
  CHECK_FALSE(node.rail.connect({}).has_value());
}

TEST_CASE("stream rail: who does not greet is shown out") {
  Besieged s;
  SUBCASE("nonsense") {
    Stranger stranger(s.node);
    stranger.say(s.node, std::vector<std::byte>(100, std::byte{0xff}));
    CHECK(stranger.thrown_out(s.node));
  }
  SUBCASE("a message first") {
    Stranger stranger(s.node);
    stranger.say(s.node, {.kind = StreamKind::kMessage, .size = 2}, bytes_of("hi"));
    CHECK(stranger.thrown_out(s.node));
    CHECK(s.node.messages.empty());
  }
  SUBCASE("another release") {
    Stranger stranger(s.node);
    StreamHead other = hello(Stranger::address(s.node).incarnation);
    other.words[2] = kStreamVersion + 1;
    stranger.say(s.node, other);
    const StreamHead answer = stranger.hears(s.node);
    CHECK(answer.kind == StreamKind::kRefused);
    CHECK(answer.words[1] == static_cast<std::uint64_t>(StreamRefusal::kVersion));
    CHECK(stranger.thrown_out(s.node));
  }
  SUBCASE("who means a process that was here before") {
    StreamAddress stale = Stranger::address(s.node);
    stale.incarnation ^= 1;
    StreamNode late;
    const RailPeer peer = value_or_throw(late.rail.connect(encode(stale)));
    auto& posted = late.next();
    REQUIRE(late.rail.send(peer, bytes_of("anybody?"), posted.ticket));
    REQUIRE(until([&] { return posted.times == 1; }, s.node, late));
    REQUIRE_FALSE(posted.status);
    CHECK(posted.status.error().code == Code::kUnavailable);
    CHECK(posted.status.error().message.find("another one listens") != std::string::npos);
    CHECK(s.node.messages.empty());
  }
  SUBCASE("more who say nothing than there is room for") {
    std::deque<Stranger> crowd;
    for (int i = 0; i < 1030; ++i) {
      crowd.emplace_back(s.node);
      s.node.poll();
    }
    CHECK(crowd.front().thrown_out(s.node));
  }
}

TEST_CASE("stream rail: frames that do not belong there cost the connection") {
  Besieged s;
  const StreamHead wrong[] = {
      {.kind = StreamKind::kWelcome},
      hello(1),
      {.kind = StreamKind::kWritten, .words = {1}},
      {.kind = StreamKind::kData, .size = 0, .words = {1}},
      {.kind = StreamKind::kWrite, .size = 0, .words = {1, 2, 3}},
  };
  for (const StreamHead& head : wrong) {
    Stranger stranger = Stranger::greeted(s.node);
    stranger.say(s.node, head);
    CHECK(stranger.thrown_out(s.node));
  }
}

TEST_CASE("stream rail: memory that is not there is refused, and the connection goes on") {
  Besieged s;
  std::vector<std::byte> memory(5000);
  const auto registration = value_or_throw(
      s.node.rail.enlist({.data = memory.data(), .size = memory.size()}, Access::kPeers));
  const std::uint64_t key = registration->window().key;
  Stranger stranger = Stranger::greeted(s.node);
  const std::vector<std::byte> payload = pattern(100'000);
  const struct {
    std::uint64_t key, offset, size;
  } wrongs[] = {{key + 1, 0, 10},  {0, 0, 10},     {key, 4991, 10}, {key, UINT64_MAX, 10},
                {key, 0, 100'000}, {key, 5000, 1}, {key, 5001, 0},  {key, UINT64_MAX, 0}};
  std::uint64_t id = 0;
  for (const auto& wrong : wrongs) {
    stranger.say(s.node,
                 {.kind = StreamKind::kRead, .words = {++id, wrong.key, wrong.offset, wrong.size}});
    StreamHead answer = stranger.hears(s.node);
    CHECK(answer.kind == StreamKind::kRefused);
    CHECK(answer.words[0] == id);
    if (wrong.size == 0) continue;
    stranger.say(s.node,
                 {.kind = StreamKind::kWrite,
                  .last = true,
                  .size = static_cast<std::uint32_t>(wrong.size),
                  .words = {++id, wrong.key, wrong.offset}},
                 std::span(payload).first(wrong.size));
    answer = stranger.hears(s.node);
    CHECK(answer.kind == StreamKind::kRefused);
    CHECK(answer.words[0] == id);
  }
  CHECK(std::ranges::all_of(memory, [](std::byte b) { return b == std::byte{0}; }));
  stranger.say(s.node,
               {.kind = StreamKind::kWrite, .last = true, .size = 5000, .words = {++id, key}},
               std::span(payload).first(5000));
  CHECK(stranger.hears(s.node).kind == StreamKind::kWritten);
  CHECK(std::ranges::equal(memory, std::span(payload).first(5000)));
}

TEST_CASE("stream rail: memory that goes in the middle of a read is sent no further") {
  Besieged s;
  std::vector<std::byte> memory = pattern(std::size_t{32} << 20);
  auto registration = value_or_throw(
      s.node.rail.enlist({.data = memory.data(), .size = memory.size()}, Access::kPeers));
  Stranger stranger = Stranger::greeted(s.node);
  stranger.say(s.node, {.kind = StreamKind::kRead,
                        .words = {1, registration->window().key, 0, memory.size()}});
  CHECK(stranger.hears(s.node).kind == StreamKind::kData);
  registration.reset();
  std::vector<std::byte>().swap(memory);  // whoever still reads there is seen by a sanitizer
  StreamHead head = stranger.hears(s.node);
  std::size_t chunks = 1;
  for (; head.kind == StreamKind::kData; ++chunks) head = stranger.hears(s.node);
  CHECK(head.kind == StreamKind::kRefused);
  CHECK(chunks < 64);
}

TEST_CASE("stream rail: who reads has the bytes of a memory that goes, or no answer") {
  Besieged s;
  const std::vector<std::byte> memory = pattern(kStreamChunk);
  const auto enlist = [&] {
    return value_or_throw(s.node.rail.enlist(
        {.data = const_cast<std::byte*>(memory.data()), .size = memory.size()}, Access::kPeers));
  };
  auto goes = enlist(), stays = enlist();
  Stranger stranger = Stranger::greeted(s.node);
  std::uint64_t id = 0;
  const auto ask = [&](const Registration& of, std::uint64_t size) {
    stranger.say(s.node, {.kind = StreamKind::kRead, .words = {++id, of.window().key, 0, size}});
  };
  // All is asked for, and the kernel takes no more answers.
  const auto until_full = [&] {
    while (s.node.poll()) {
    }
  };
  SUBCASE("in the middle of its last chunk") {
    for (int i = 0; i < 64; ++i) ask(*goes, memory.size());
    until_full();
    goes.reset();
    std::size_t good = 0, refused = 0;
    while (const auto head = stranger.hears_or_ends(s.node)) {
      if (head->kind == StreamKind::kRefused && ++refused + good == 64) break;
      if (head->kind != StreamKind::kData) continue;
      ++good;
      CHECK(std::ranges::equal(stranger.payload, memory));
    }
    CHECK(good < 64);
  }
  SUBCASE("before its turn") {
    for (int i = 0; i < 64; ++i) ask(*stays, memory.size());
    ask(*goes, 100);
    until_full();
    goes.reset();
    for (int i = 0; i < 64; ++i) CHECK(stranger.hears(s.node).kind == StreamKind::kData);
    const StreamHead head = stranger.hears(s.node);
    CHECK(head.kind == StreamKind::kRefused);
    CHECK(head.words[0] == id);
  }
}

TEST_CASE("stream rail: nothing of a write that was given up comes afterwards") {
  StreamNode node;
  const FileDescriptor listener = listen_at("127.0.0.1", 0);
  const RailPeer peer = value_or_throw(node.rail.connect(encode(address_of(listener.get()))));
  std::vector<std::byte> memory = pattern(std::size_t{32} << 20);
  auto &write = node.next(), &message = node.next();
  REQUIRE(node.rail.send(peer, bytes_of("good bye"), message.ticket));
  Stranger stranger = Stranger::called(listener, node);
  CHECK(stranger.hears(node).kind == StreamKind::kMessage);
  const Child child;
  SUBCASE("a write is open") {
    REQUIRE(node.rail.write(peer, {nullptr, memory.data(), memory.size()}, {0, 1}, write.ticket));
    CHECK(stranger.hears(node).kind == StreamKind::kWrite);
    node.rail.disconnect(peer);
    while (stranger.hears_or_ends(node)) {
    }
    CHECK(stranger.reset);
    CHECK(write.times == 1);
    CHECK_FALSE(write.status.has_value());
  }
  SUBCASE("none is: what was said comes, in good order") {
    auto& last = node.next();
    REQUIRE(node.rail.send(peer, bytes_of("see you"), last.ticket));
    node.rail.disconnect(peer);
    CHECK(stranger.hears(node).kind == StreamKind::kMessage);
    CHECK(stranger.thrown_out(node));
    CHECK_FALSE(stranger.reset);
  }
}

TEST_CASE("stream rail: messages pass between the chunks of a large write") {
  StreamNode node;
  const FileDescriptor listener = listen_at("127.0.0.1", 0);
  const RailPeer peer = value_or_throw(node.rail.connect(encode(address_of(listener.get()))));
  std::vector<std::byte> memory = pattern(std::size_t{32} << 20);
  auto &write = node.next(), &message = node.next();
  REQUIRE(node.rail.write(peer, {nullptr, memory.data(), memory.size()}, {0, 1}, write.ticket));
  Stranger stranger = Stranger::called(listener, node);
  CHECK(stranger.hears(node).kind == StreamKind::kWrite);
  REQUIRE(node.rail.send(peer, bytes_of("excuse me"), message.ticket));
  std::size_t chunks = 1;
  StreamHead head = stranger.hears(node);
  for (; head.kind == StreamKind::kWrite; ++chunks) head = stranger.hears(node);
  CHECK(head.kind == StreamKind::kMessage);
  CHECK(chunks < 40);  // of 64: what the kernel had taken already
  for (; chunks < memory.size() / kStreamChunk; ++chunks) {
    head = stranger.hears(node);
    CHECK(head.kind == StreamKind::kWrite);
    CHECK(
        std::ranges::equal(stranger.payload, std::span(memory).subspan(head.words[2], head.size)));
  }
  CHECK(head.last);
  CHECK(write.times == 0);
  SUBCASE("confirmed") {
    stranger.say(node, {.kind = StreamKind::kWritten, .words = {head.words[0]}});
    CHECK(until([&] { return write.times == 1; }, node));
    CHECK(write.status.has_value());
  }
  SUBCASE("refused") {
    stranger.say(node, {.kind = StreamKind::kRefused, .words = {head.words[0], 3}});
    CHECK(until([&] { return write.times == 1; }, node));
    CHECK_FALSE(write.status.has_value());
  }
  SUBCASE("answered with bytes that nobody asked for") {
    stranger.say(node, {.kind = StreamKind::kData, .size = 1, .words = {head.words[0]}});
    CHECK(until([&] { return write.times == 1; }, node));
    REQUIRE_FALSE(write.status.has_value());
    CHECK(write.status.error().code == Code::kUnavailable);
  }
  CHECK(message.times == 1);
}

TEST_CASE("stream rail: asleep, its descriptor tells what comes; awake again, it costs nothing") {
  StreamNode a, b;
  const RailPeer to_b = value_or_throw(a.rail.connect(b.rail.info().address));
  const auto readable = [](const StreamNode& node, int ms) {
    pollfd fd{.fd = node.rail.descriptor(), .events = POLLIN, .revents = 0};
    return poll(&fd, 1, ms) == 1;
  };
  for (int i = 0; i < 3; ++i) {
    auto& posted = a.next();
    REQUIRE(a.rail.send(to_b, bytes_of("wake up"), posted.ticket));
    REQUIRE(until([&] { return b.messages.size() == static_cast<std::size_t>(i) + 1; }, a, b));
    while (a.poll() || b.poll()) {
    }
    REQUIRE(b.rail.arm());
    CHECK_FALSE(readable(b, 0));
    auto& second = a.next();
    REQUIRE(a.rail.send(to_b, bytes_of("now"), second.ticket));
    CHECK(readable(b, 20'000));
    b.rail.disarm();
    REQUIRE(until([&] { return b.messages.back() == "now"; }, b));
    b.messages.pop_back();
  }
}

}  // namespace leeway::transport::testing
