#include "tests/unit/transport/child.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "tests/unit/transport/self_process.h"

namespace leeway::transport::testing {
namespace {

constexpr char kRole[] = "LEEWAY_TRANSPORT_TEST_CHILD";  // "FD FABRIC stay|leave|speak"

void put(int fd, const void* data, std::size_t size) {
  REQUIRE(::write(fd, data, size) == static_cast<ssize_t>(size));
}
void get(int fd, void* data, std::size_t size) {
  std::size_t got = 0;
  while (got < size) {
    const ssize_t n = ::read(fd, static_cast<char*>(data) + got, size - got);
    if (n <= 0) throw std::runtime_error("the child process ended early");
    got += static_cast<std::size_t>(n);
  }
}
void put_bytes(int fd, const std::vector<std::byte>& bytes) {
  const std::uint64_t size = bytes.size();
  put(fd, &size, sizeof size);
  put(fd, bytes.data(), bytes.size());
}
std::vector<std::byte> get_bytes(int fd) {
  std::uint64_t size = 0;
  get(fd, &size, sizeof size);
  std::vector<std::byte> bytes(size);
  get(fd, bytes.data(), bytes.size());
  return bytes;
}

}  // namespace

Child::Child(const std::string& fabric, const Node& parent, Leaves leaves) {
  const std::string ends = leaves == Leaves::kWhenTold ? "stay"
                           : leaves == Leaves::kAtOnce ? "leave"
                                                       : "speak";
  const SelfProcess started = start_self("child", kRole, fabric + " " + ends);
  pid_ = started.pid;
  pipe_ = started.socket;
  put_bytes(pipe_, parent.endpoint->info().address);
  address_ = get_bytes(pipe_);
  get(pipe_, &memory_, sizeof memory_);
  get(pipe_, &key_, sizeof key_);
}

Child::~Child() {
  close(pipe_);
  if (pid_ > 0) wait();
}

void Child::signal(int number) const { ::kill(pid_, number); }

void Child::kill() {
  signal(SIGKILL);
  wait();
}

int Child::wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE("child" * doctest::skip()) {
  const char* role = std::getenv(kRole);
  if (role == nullptr) return;  // somebody ran every test
  int fd = -1;
  char fabric[16] = "", until[16] = "";
  REQUIRE(std::sscanf(role, "%d %15s %15s", &fd, fabric, until) == 3);
  const auto parent = get_bytes(fd);
  // Before the endpoint, whose thread uses them until it is closed.
  std::promise<void> greeted;
  Peer peer;
  const bool leave = std::string_view(until) == "leave", speak = std::string_view(until) == "speak";
  const auto endpoint = Endpoint::open({.fabric = fabric, .bind = bind_address()});
  const RegisteredMemory memory = value_or_throw(endpoint->allocate(kChildMemory, Access::kPeers));
  fill(memory, 77);
  endpoint->start(
      [&](std::span<const std::byte> message) { endpoint->send(peer, message, soon()); });
  endpoint->post([&] {
    peer = value_or_throw(endpoint->connect(parent));
    const auto text = std::as_bytes(std::span("hello", 5));
    for (int left = speak ? kLastWords : 1; left > 1; --left)
      endpoint->send(peer, text, soon(), nullptr);
    endpoint->send(peer, text, soon(), [&](Outcome) { greeted.set_value(); });
  });
  put_bytes(fd, endpoint->info().address);
  const std::uint64_t where[] = {memory.remote()->front().address, memory.remote()->front().key};
  put(fd, where, sizeof where);
  if (leave || speak) {
    greeted.get_future().wait_for(speak ? kPatience : std::chrono::milliseconds(300));
    return;
  }
  char nothing = 0;
  while (::read(fd, &nothing, 1) > 0) {
  }
}

}  // namespace leeway::transport::testing
