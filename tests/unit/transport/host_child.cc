#include "tests/unit/transport/host_child.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "tests/unit/transport/self_process.h"

namespace leeway::transport::testing {
namespace {

constexpr char kRole[] = "LEEWAY_HOST_RAIL_TEST_CHILD";  // "FD ROLE BYTES"
constexpr std::size_t kAddress = 23;                     // "leeway-" and 16 digits

// What each tells the other first.
struct Greeting {
  std::byte address[kAddress];
  Window memory;
};

void put(int fd, const Greeting& greeting) {
  if (::write(fd, &greeting, sizeof greeting) != sizeof greeting)
    throw std::runtime_error("the other process ended early");
}
Greeting get(int fd) {
  Greeting greeting;
  if (::recv(fd, &greeting, sizeof greeting, MSG_WAITALL) != sizeof greeting)
    throw std::runtime_error("the other process ended early");
  return greeting;
}
Greeting greeting_of(const HostNode& node, Window memory) {
  Greeting greeting{.address = {}, .memory = memory};
  const auto& address = node.rail->info().address;
  REQUIRE(address.size() == kAddress);
  std::memcpy(greeting.address, address.data(), kAddress);
  return greeting;
}

}  // namespace

HostChild::HostChild(Role role, const HostNode& parent, Window memory, std::size_t bytes) {
  const SelfProcess started = start_self(
      "host child", kRole, std::to_string(static_cast<int>(role)) + " " + std::to_string(bytes));
  pid_ = started.pid;
  pipe_ = started.socket;
  put(pipe_, greeting_of(parent, memory));
  const Greeting child = get(pipe_);
  address_.assign(child.address, child.address + kAddress);
  memory_ = child.memory;
}

// Without its pipe it ends by itself.
HostChild::~HostChild() {
  close(pipe_);
  if (pid_ > 0) wait();
}

void HostChild::signal(int number) const { ::kill(pid_, number); }

void HostChild::kill() {
  signal(SIGKILL);
  wait();
}

void HostChild::wait() {
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

namespace {

struct ChildTicket : Ticket {
  bool busy = false;
};

// Nobody who looks at the outcomes: the parent may be gone at any moment.
class ChildNode final : public RailUser {
 public:
  void message(std::span<const std::byte> bytes) override {
    received.emplace_back(bytes.begin(), bytes.end());
  }
  void done(Ticket& ticket, Status) override { static_cast<ChildTicket&>(ticket).busy = false; }
  std::vector<std::vector<std::byte>> received;
};

}  // namespace

TEST_CASE("host child" * doctest::skip()) {
  const char* role = std::getenv(kRole);
  if (role == nullptr) return;  // somebody ran every test
  int fd = -1, number = 0;
  std::size_t bytes = 0;
  REQUIRE(std::sscanf(role, "%d %d %zu", &fd, &number, &bytes) == 3);
  const bool flood = number == static_cast<int>(HostChild::Role::kFlood);
  const bool spin = number == static_cast<int>(HostChild::Role::kSpin);
  HostNode node;
  const HostShared memory(node, bytes);
  std::ranges::fill(memory.bytes(), std::byte{77});
  const Greeting parent = get(fd);
  put(fd, greeting_of(node, memory.window()));
  const RailPeer peer = node.connect(parent.address);
  ChildNode user;
  std::array<ChildTicket, 3> tickets{};
  std::deque<ChildTicket> answers;
  std::vector<std::byte> here(kHostChildMemory / 2);
  const std::string chatter(1000, 'f');
  const auto post = [&](ChildTicket& ticket, auto what) {
    if (ticket.busy) return;
    const auto posted = what(ticket);
    if (posted && *posted == Rail::Post::kTaken) ticket.busy = true;
  };
  for (unsigned rounds = 0;;) {
    bool any = node.rail->poll(user);
    for (auto it = user.received.begin(); it != user.received.end();) {
      const auto posted = node.rail->send(peer, *it, answers.emplace_back());
      if (posted && *posted == Rail::Post::kTryAgain) break;
      it = user.received.erase(it);
      any = true;
    }
    while (answers.size() > kRingRoom / 16)  // more than one round can add
      answers.pop_front();
    if (flood) {
      const Window theirs = parent.memory;
      post(tickets[0], [&](Ticket& ticket) {
        return node.rail->send(peer, std::as_bytes(std::span(chatter)), ticket);
      });
      post(tickets[1], [&](Ticket& ticket) {
        return node.rail->read(peer, {nullptr, here.data(), here.size()}, theirs, ticket);
      });
      post(tickets[2], [&](Ticket& ticket) {
        return node.rail->write(peer, {nullptr, here.data(), here.size()},
                                {theirs.address + here.size(), theirs.key}, ticket);
      });
    }
    // The parent has no more use for us when it closes.
    char nothing = 0;
    if (++rounds % 1024 == 0 && recv(fd, &nothing, 1, MSG_DONTWAIT) == 0) return;
    if (any || spin || !node.rail->arm()) continue;
    pollfd watched[] = {{.fd = fd, .events = POLLIN, .revents = 0},
                        {.fd = node.rail->descriptor(), .events = POLLIN, .revents = 0}};
    ::poll(watched, 2, -1);
    node.rail->disarm();
  }
}

}  // namespace leeway::transport::testing
