// The rail between processes of one host: peers that do not keep to the protocol. Each loses its
// own connection, and nothing else happens.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include "tests/unit/transport/host_fixture.h"
#include "transport/file_descriptor.h"
#include "transport/host_ring.h"
#include "transport/host_socket.h"

namespace leeway::transport::testing {
namespace {

constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

FileDescriptor memory_file(std::size_t bytes, int seals) {
  FileDescriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
  REQUIRE(fcntl(file.get(), F_ADD_SEALS, seals) == 0);
  return file;
}

HostPacket hello() {
  return {.kind = HostPacket::Kind::kHello,
          .number = kHostVersion,
          .key = kHostMagic,
          .size = kRingBytes};
}

// Connects to a node as a sender does, and then does what it likes.
class Intruder {
 public:
  explicit Intruder(const HostNode& node)
      : Intruder(node, memory_file(kRingBytes, kAllSeals), kRingBytes) {}
  Intruder(const HostNode& node, FileDescriptor ring, std::size_t bytes)
      : socket(value_or_throw(HostSocket::make()), -1, 0), ring_file(std::move(ring)) {
    const auto& address = node.rail->info().address;
    REQUIRE(socket.connect({reinterpret_cast<const char*>(address.data()), address.size()}) ==
            HostSocket::Io::kDone);
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring_file.get(), 0);
    REQUIRE(mapped != MAP_FAILED);
    memory = {static_cast<std::byte*>(mapped), bytes};
  }
  ~Intruder() { munmap(memory.data(), memory.size()); }
  Intruder(const Intruder&) = delete;
  Intruder& operator=(const Intruder&) = delete;

  void greet() { send(hello(), ring_file); }
  void send(const HostPacket& packet, const FileDescriptor& attached = {}) {
    REQUIRE(socket.try_send(packet, attached) == HostSocket::Io::kDone);
  }
  RingHeader& header() { return *reinterpret_cast<RingHeader*>(memory.data()); }
  void put_size(std::uint64_t at, std::uint64_t size) {
    std::memcpy(memory.data() + kRingRecords + at, &size, sizeof size);
  }
  // Nothing was said to it but that it is over.
  bool thrown_out() {
    HostPacket packet;
    FileDescriptor attached;
    return socket.receive(packet, attached) == HostSocket::Io::kGone;
  }

  HostSocket socket;
  FileDescriptor ring_file;
  std::span<std::byte> memory;
};

// A node that has a good peer, and must still have it afterwards.
class Besieged {
 public:
  Besieged() : memory(node, 5000), to_node(good.connect(node)) {
    REQUIRE(works());
    descriptors_ = open_descriptors();
  }
  bool works() {
    const std::size_t before = node.messages.size();
    good.send(to_node, "still here");
    std::byte here{};
    const auto read = good.read(to_node, {&here, 1}, memory.window());
    return until([&] { return node.messages.size() == before + 1 && good.is_done(read); }, node,
                 good) &&
           node.messages.back() == "still here" && good.outcome(read);
  }
  void expect_thrown_out(Intruder& intruder) {
    CHECK(until([&] { return intruder.thrown_out(); }, node));
    CHECK(works());
  }

  HostNode node, good;
  HostShared memory;
  RailPeer to_node;

 private:
  std::size_t descriptors_ = 0;
};

TEST_SUITE_BEGIN("host_rail");

TEST_CASE("hostile peer: greetings that are none") {
  Besieged besieged;
  const std::size_t descriptors = open_descriptors(), mappings = shared_mappings();
  struct Case {
    const char* name;
    HostPacket packet;
  };
  HostPacket magic = hello(), version = hello(), size = hello(), kind = hello(), ask = hello();
  magic.key ^= 1;
  version.number += 1;
  size.size = 4096;
  kind.kind = static_cast<HostPacket::Kind>(99);
  ask.kind = HostPacket::Kind::kAsk;
  for (const Case& c : {Case{"magic", magic}, Case{"version", version}, Case{"size", size},
                        Case{"kind", kind}, Case{"a question first", ask}}) {
    CAPTURE(c.name);
    Intruder intruder(besieged.node);
    intruder.send(c.packet, intruder.ring_file);
    besieged.expect_thrown_out(intruder);
  }
  CHECK(open_descriptors() == descriptors);
  CHECK(shared_mappings() == mappings);
}

TEST_CASE("hostile peer: packets of another length, and many descriptors") {
  Besieged besieged;
  const std::size_t descriptors = open_descriptors();
  const auto& address = besieged.node.rail->info().address;
  for (const std::size_t length : {1, 23, 25, 1000}) {
    CAPTURE(length);
    const FileDescriptor raw(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, address.data(), address.size());
    REQUIRE(connect(raw.get(), reinterpret_cast<sockaddr*>(&name),
                    static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address.size())) ==
            0);
    std::vector<std::byte> bytes(length);
    const HostPacket packet = hello();
    std::memcpy(bytes.data(), &packet, std::min(length, sizeof packet));
    iovec part{bytes.data(), bytes.size()};
    constexpr std::size_t kMany = 200;
    alignas(cmsghdr) std::byte control[CMSG_SPACE(kMany * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(kMany * sizeof(int));
    std::vector<int> same(kMany, raw.get());
    std::memcpy(CMSG_DATA(rights), same.data(), kMany * sizeof(int));
    REQUIRE(sendmsg(raw.get(), &header, 0) > 0);
    char answer = 0;
    CHECK(until([&] { return recv(raw.get(), &answer, 1, MSG_DONTWAIT) == 0; }, besieged.node));
  }
  CHECK(besieged.works());
  CHECK(open_descriptors() == descriptors);
}

TEST_CASE("hostile peer: rings that could be cut off, are too short or no memory at all") {
  Besieged besieged;
  const std::size_t descriptors = open_descriptors(), mappings = shared_mappings();
  for (const int seals : {0, F_SEAL_GROW, F_SEAL_GROW | F_SEAL_SEAL, F_SEAL_SHRINK}) {
    CAPTURE(seals);
    Intruder intruder(besieged.node, memory_file(kRingBytes, seals), kRingBytes);
    intruder.greet();
    besieged.expect_thrown_out(intruder);
  }
  {
    Intruder intruder(besieged.node, memory_file(4096, kAllSeals), 4096);
    intruder.greet();
    besieged.expect_thrown_out(intruder);
  }
  {
    Intruder intruder(besieged.node, memory_file(kRingBytes - 1, kAllSeals), 4096);
    intruder.greet();
    besieged.expect_thrown_out(intruder);
  }
  {
    // A ring that we could not write into.
    Intruder intruder(besieged.node, memory_file(kRingBytes, 0), kRingBytes);
    munmap(intruder.memory.data(), intruder.memory.size());
    REQUIRE(fcntl(intruder.ring_file.get(), F_ADD_SEALS, kAllSeals | F_SEAL_WRITE) == 0);
    intruder.memory = {static_cast<std::byte*>(
                           mmap(nullptr, 4096, PROT_READ, MAP_SHARED, intruder.ring_file.get(), 0)),
                       4096};
    intruder.greet();
    besieged.expect_thrown_out(intruder);
  }
  for (const char* path : {"/dev/zero", "/proc/self/exe", "/dev/null"}) {
    CAPTURE(path);
    Intruder intruder(besieged.node);
    intruder.send(hello(), FileDescriptor(open(path, O_RDONLY | O_CLOEXEC)));
    besieged.expect_thrown_out(intruder);
  }
  {
    Intruder intruder(besieged.node);
    intruder.send(hello());
    besieged.expect_thrown_out(intruder);
  }
  CHECK(open_descriptors() == descriptors);
  CHECK(shared_mappings() == mappings);
}

TEST_CASE("hostile peer: indices and lengths that lead out of the ring") {
  Besieged besieged;
  struct Case {
    const char* name;
    std::uint64_t tail, size;
  };
  for (const Case& c :
       {Case{"more than there is room", kRingRoom + 8, 8},
        Case{"all there is", ~std::uint64_t{0}, 8}, Case{"backwards", std::uint64_t{0} - 8, 8},
        Case{"between two records", 12, 0}, Case{"half a record", 16, 9}, Case{"no record", 8, 1},
        Case{"a message that is too long", kRingRoom, 8193},
        Case{"a length that wraps", kRingRoom, ~std::uint64_t{0}},
        Case{"a length that wraps when it is rounded", kRingRoom, ~std::uint64_t{0} - 14}}) {
    CAPTURE(c.name);
    const std::size_t before = besieged.node.messages.size();
    Intruder intruder(besieged.node);
    intruder.greet();
    intruder.put_size(0, c.size);
    intruder.header().tail.store(c.tail);
    CHECK(until([&] { return intruder.thrown_out(); }, besieged.node));
    CHECK(besieged.node.messages.size() == before);
    CHECK(besieged.works());
  }
}

TEST_CASE("hostile peer: a ring that changes while it is read") {
  Besieged besieged;
  std::atomic<bool> over{false};
  std::size_t left = 0;
  for (int round = 0; round < 20; ++round) {
    Intruder intruder(besieged.node);
    intruder.greet();
    std::thread writer([&] {
      std::uint64_t tail = 0;
      for (std::uint64_t i = 0; !over; ++i) {
        std::atomic_ref(*reinterpret_cast<std::uint64_t*>(intruder.memory.data() + kRingRecords +
                                                          i * 8 % kRingRoom))
            .store(i % 7 == 0 ? 100000 : i % 8192, std::memory_order_relaxed);
        tail += 8;
        intruder.header().tail.store(round % 2 == 0 ? tail : i * 977, std::memory_order_relaxed);
        intruder.header().head.store(i * 8, std::memory_order_relaxed);
      }
    });
    const TimePoint end = MonotonicClock::now() + milliseconds(30);
    while (MonotonicClock::now() < end && !intruder.thrown_out()) besieged.node.poll();
    left += intruder.thrown_out() ? 0 : 1;
    over = true;
    writer.join();
    over = false;
    for (const std::string& message : besieged.node.messages) CHECK(message.size() <= 8192);
    besieged.node.messages.clear();
  }
  MESSAGE(left << " of 20 were still in");
  CHECK(besieged.works());
}

TEST_CASE("hostile peer: packets that do not belong to a sender") {
  Besieged besieged;
  for (const auto kind :
       {HostPacket::Kind::kHello, HostPacket::Kind::kGive, HostPacket::Kind::kRefuse,
        HostPacket::Kind::kRetire, HostPacket::Kind::kWake}) {
    CAPTURE(static_cast<int>(kind));
    Intruder intruder(besieged.node);
    intruder.greet();
    intruder.send({.kind = kind}, intruder.ring_file);
    besieged.expect_thrown_out(intruder);
  }
}

TEST_CASE("hostile peer: bells that are none, and a second one") {
  Besieged besieged;
  const std::size_t descriptors = open_descriptors();
  const HostPacket bell{.kind = HostPacket::Kind::kBell};
  int pipes[2];
  REQUIRE(pipe2(pipes, O_CLOEXEC) == 0);
  const FileDescriptor reader(pipes[0]), writer(pipes[1]);
  const FileDescriptor good(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), none;
  for (const FileDescriptor* attached : {&reader, &writer, &none}) {
    Intruder intruder(besieged.node);
    intruder.greet();
    intruder.send(bell, *attached);
    besieged.expect_thrown_out(intruder);
  }
  {
    Intruder intruder(besieged.node);
    intruder.greet();
    intruder.send(bell, good);
    intruder.send(bell, good);
    besieged.expect_thrown_out(intruder);
  }
  CHECK(open_descriptors() == descriptors + 3);
  // Nor does the bell of one that was thrown out wake anybody.
  settle(besieged.node);
  const std::uint64_t one = 1;
  REQUIRE(write(good.get(), &one, sizeof one) == sizeof one);
  CHECK(!readable(besieged.node, milliseconds(0)));
}

TEST_CASE("hostile peer: one that asks and asks and does not read the answers") {
  Besieged besieged;
  Intruder intruder(besieged.node);
  intruder.greet();
  const std::size_t descriptors = open_descriptors();
  // Until our answers and its questions are both stuck.
  std::size_t asked = 0;
  const auto ask = [&] {
    const bool sent = intruder.socket.try_send(
                          {.kind = HostPacket::Kind::kAsk, .key = besieged.memory.window().key},
                          {}) == HostSocket::Io::kDone;
    asked += sent ? 1 : 0;
    return sent;
  };
  for (int quiet = 0; quiet < 1000;) {
    bool sent = false;
    for (int i = 0; i < 40; ++i) sent |= ask();
    const bool polled = besieged.node.poll();
    quiet = sent || polled ? 0 : quiet + 1;
    REQUIRE(asked < 100000);
  }
  CHECK(open_descriptors() <= descriptors + 2);
  CHECK(besieged.works());
  settle(besieged.node);
  CHECK(!readable(besieged.node, milliseconds(20)));
  // Once it reads, it gets every one.
  std::size_t answered = 0;
  CHECK(until(
      [&] {
        HostPacket packet;
        FileDescriptor attached;
        while (intruder.socket.receive(packet, attached) == HostSocket::Io::kDone)
          answered += packet.kind == HostPacket::Kind::kGive && attached ? 1 : 0;
        return answered == asked;
      },
      besieged.node));
}

// A receiver that does what it likes: it listens, and takes one sender.
class FalseReceiver {
 public:
  FalseReceiver() : name_(random_host_name()), listener_(listen_as(name_)) {}

  std::span<const std::byte> address() const { return std::as_bytes(std::span(name_)); }
  void take() {
    socket_.emplace(
        FileDescriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)),
        -1, 0);
    HostPacket packet;
    REQUIRE(socket_->receive(packet, ring_file_) == HostSocket::Io::kDone);
    REQUIRE(packet.kind == HostPacket::Kind::kHello);
    void* mapped =
        mmap(nullptr, kRingBytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring_file_.get(), 0);
    REQUIRE(mapped != MAP_FAILED);
    header_ = static_cast<RingHeader*>(mapped);
  }
  ~FalseReceiver() {
    if (header_ != nullptr) munmap(header_, kRingBytes);
  }
  FalseReceiver(const FalseReceiver&) = delete;
  FalseReceiver& operator=(const FalseReceiver&) = delete;

  std::uint64_t asked() {
    HostPacket packet;
    FileDescriptor none;
    return socket_->receive(packet, none) == HostSocket::Io::kDone &&
                   packet.kind == HostPacket::Kind::kAsk
               ? packet.key
               : 0;
  }
  void send(const HostPacket& packet, const FileDescriptor& attached = {}) {
    REQUIRE(socket_->try_send(packet, attached) == HostSocket::Io::kDone);
  }
  RingHeader& header() { return *header_; }

 private:
  std::string name_;
  FileDescriptor listener_, ring_file_;
  std::optional<HostSocket> socket_;
  RingHeader* header_ = nullptr;
};

TEST_CASE("hostile owner: memories that cannot be relied on cost their tickets") {
  HostNode node;
  FalseReceiver owner;
  const RailPeer peer = node.connect(owner.address());
  owner.take();
  std::byte here[100] = {};
  struct Case {
    const char* name;
    std::size_t bytes;
    int seals;
    std::size_t said;
  };
  for (const Case& c : {Case{"could shrink", 4096, F_SEAL_GROW, 4096},
                        Case{"smaller than was said", 4096, kAllSeals, 4097},
                        Case{"far smaller", 4096, kAllSeals, std::size_t{1} << 62},
                        Case{"past counting", 4096, kAllSeals, ~std::size_t{0}}}) {
    CAPTURE(c.name);
    const auto read = node.read(peer, here, {0, 7});
    REQUIRE(until([&] { return owner.asked() == 7; }, node));
    owner.send({.kind = HostPacket::Kind::kGive, .key = 7, .size = c.said},
               memory_file(c.bytes, c.seals));
    REQUIRE(until([&] { return node.is_done(read); }, node));
    CHECK(!node.outcome(read));
  }
  {
    const auto read = node.read(peer, here, {0, 7});
    REQUIRE(until([&] { return owner.asked() == 7; }, node));
    owner.send({.kind = HostPacket::Kind::kGive, .key = 7, .size = 4096});
    REQUIRE(until([&] { return node.is_done(read); }, node));
    CHECK(!node.outcome(read));
  }
  // The next one that is given properly works; a write-protected one is an error.
  const auto read = node.read(peer, here, {0, 7});
  REQUIRE(until([&] { return owner.asked() == 7; }, node));
  owner.send({.kind = HostPacket::Kind::kGive, .key = 7, .size = 4096},
             memory_file(4096, kAllSeals));
  REQUIRE(until([&] { return node.is_done(read); }, node));
  CHECK(node.outcome(read));
  const auto write = node.write(peer, here, {0, 8});
  REQUIRE(until([&] { return owner.asked() == 8; }, node));
  owner.send({.kind = HostPacket::Kind::kGive, .key = 8, .size = 4096},
             memory_file(4096, kAllSeals | F_SEAL_WRITE));
  REQUIRE(until([&] { return node.is_done(write); }, node));
  CHECK(!node.outcome(write));
}

TEST_CASE("hostile owner: packets that do not belong to a receiver end the connection") {
  using Kind = HostPacket::Kind;
  const auto memory = memory_file(4096, kAllSeals);
  for (const HostPacket& packet :
       {HostPacket{.kind = Kind::kHello}, HostPacket{.kind = Kind::kAsk, .key = 7},
        HostPacket{.kind = Kind::kGive, .key = 9, .size = 4096},
        HostPacket{.kind = Kind::kRefuse, .key = 9}, HostPacket{.kind = static_cast<Kind>(0)}}) {
    CAPTURE(static_cast<int>(packet.kind));
    HostNode node;
    FalseReceiver owner;
    const RailPeer peer = node.connect(owner.address());
    owner.take();
    std::byte here[100] = {};
    const auto read = node.read(peer, here, {0, 7});
    owner.send(packet, memory);
    REQUIRE(until([&] { return node.is_done(read); }, node));
    REQUIRE(!node.outcome(read));
    CHECK(node.outcome(read).error().code == Code::kUnavailable);
    CHECK(!node.rail->send(peer, {}, node.new_ticket()));
  }
}

TEST_CASE("hostile owner: retiring what it never gave, and waking without end, is nothing") {
  HostNode node;
  FalseReceiver owner;
  const RailPeer peer = node.connect(owner.address());
  owner.take();
  std::byte here[100] = {};
  const auto read = node.read(peer, here, {0, 7});
  owner.send({.kind = HostPacket::Kind::kRetire, .key = 7});
  owner.send({.kind = HostPacket::Kind::kRetire, .key = 8});
  for (int i = 0; i < 200; ++i) owner.send({.kind = HostPacket::Kind::kWake});
  settle(node);
  CHECK(!node.is_done(read));
  owner.send({.kind = HostPacket::Kind::kGive, .key = 7, .size = 4096},
             memory_file(4096, kAllSeals));
  REQUIRE(until([&] { return node.is_done(read); }, node));
  CHECK(node.outcome(read));
}

TEST_CASE("hostile owner: a head that leads out of the ring ends the connection") {
  for (const std::uint64_t head : {~std::uint64_t{0}, std::uint64_t{8}, kRingRoom * 3}) {
    CAPTURE(head);
    HostNode node;
    FalseReceiver owner;
    const RailPeer peer = node.connect(owner.address());
    owner.take();
    owner.header().head.store(head);
    const std::string text(8192, 'x');
    Result<Rail::Post> posted = Rail::Post::kTaken;
    for (int i = 0; i < 100 && posted && *posted == Rail::Post::kTaken; ++i)
      posted = node.rail->send(peer, std::as_bytes(std::span(text)), node.new_ticket());
    if (head == 8) {  // less than was written: nothing can be told
      CHECK(posted);
      continue;
    }
    REQUIRE(!posted);
    CHECK(posted.error().code == Code::kUnavailable);
  }
}

TEST_SUITE_END();

}  // namespace
}  // namespace leeway::transport::testing
