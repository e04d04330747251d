#include "tests/conformance/puppet.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <utility>

#include "tests/conformance/puppet_pipe.h"

namespace leeway::conformance {
namespace {

Parcel answer(int pipe, const Parcel& question) {
  question.send_to(pipe);
  Parcel answer;
  if (!answer.receive_from(pipe)) throw std::runtime_error("the puppet is gone");
  return answer;
}

Parcel parcel(PuppetVerb verb) {
  Parcel parcel;
  parcel.put(verb);
  return parcel;
}

Parcel parcel_of(const Puppet::Transfer& transfer) {
  return parcel(PuppetVerb::kTransfer)
      .put(transfer.peer)
      .put(transfer.memory)
      .put(transfer.offset)
      .put(transfer.size)
      .put_all(*transfer.remote.memory)
      .put(transfer.remote.offset)
      .put(transfer.write)
      .put(transfer.times)
      .put(transfer.wait)
      .put(transfer.deadline.count());
}

}  // namespace

Puppet::Puppet(const Options& options) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    throw std::runtime_error("socketpair");
  pipe_ = pair[0];
  fcntl(pair[1], F_SETFD, 0);
  const Fabric& here = fabric();
  std::vector<std::string> arguments = {"puppet",
                                        "--fabric",
                                        here.name,
                                        "--bind",
                                        here.other_bind.empty() ? here.bind : here.other_bind,
                                        "--puppet",
                                        std::to_string(pair[1]),
                                        "--port",
                                        std::to_string(options.port),
                                        "--max-transfer",
                                        std::to_string(options.max_transfer),
                                        "--open-files",
                                        std::to_string(options.open_files)};
  if (here.other_namespace >= 0) {
    arguments.push_back("--namespace");
    arguments.push_back(std::to_string(here.other_namespace));
  }
  std::vector<char*> raw;
  for (std::string& argument : arguments) raw.push_back(argument.data());
  raw.push_back(nullptr);
  const int error = posix_spawn(&pid_, "/proc/self/exe", nullptr, nullptr, raw.data(), environ);
  close(pair[1]);
  Parcel greeting;
  if (error != 0 || !greeting.receive_from(pipe_)) {
    close(pipe_);
    if (error == 0) waitpid(pid_, nullptr, 0);
    throw std::runtime_error("a puppet did not start");
  }
  address_ = greeting.take_all<std::byte>();
  printable_ = greeting.take_text();
}

Puppet::~Puppet() {
  if (pid_ > 0) leave();
  if (pipe_ >= 0) close(pipe_);
}

void Puppet::leave() {
  close(std::exchange(pipe_, -1));
  wait_for_end();
}

std::uint32_t Puppet::allocate(std::size_t bytes, std::uint64_t seed) {
  auto windows =
      answer(pipe_, parcel(PuppetVerb::kAllocate).put(bytes).put(seed)).take_all<Window>();
  memories_.push_back(std::make_shared<RemoteMemory>(std::move(windows)));
  return static_cast<std::uint32_t>(memories_.size() - 1);
}

std::uint32_t Puppet::connect(const std::vector<std::byte>& address) {
  return answer(pipe_, parcel(PuppetVerb::kConnect).put_all(address)).take<std::uint32_t>();
}

void Puppet::disconnect(std::uint32_t peer) {
  answer(pipe_, parcel(PuppetVerb::kDisconnect).put(peer));
}

RemoteRange Puppet::memory(std::uint32_t memory, std::uint64_t offset) const {
  return {memories_.at(memory), offset};
}

std::uint32_t Puppet::transfer(const Transfer& transfer) {
  return answer(pipe_, parcel_of(transfer)).take<std::uint32_t>();
}

void Puppet::die_transferring(const Transfer& transfer) {
  parcel_of(transfer).send_to(pipe_);
  wait_for_end();
}

std::uint32_t Puppet::send(std::uint32_t peer, const std::string& text, std::uint32_t times,
                           bool wait) {
  return answer(pipe_, parcel(PuppetVerb::kSend).put(peer).put_text(text).put(times).put(wait))
      .take<std::uint32_t>();
}

std::uint32_t Puppet::received(std::uint32_t at_least) {
  return answer(pipe_, parcel(PuppetVerb::kReceived).put(at_least)).take<std::uint32_t>();
}

std::uint64_t Puppet::hash_of(std::uint32_t memory) {
  return answer(pipe_, parcel(PuppetVerb::kHash).put(memory)).take<std::uint64_t>();
}

void Puppet::stand_still() { answer(pipe_, parcel(PuppetVerb::kStandStill)); }

void Puppet::die_when_touched(std::uint32_t memory, std::uint64_t offset) {
  answer(pipe_, parcel(PuppetVerb::kDieWhenTouched).put(memory).put(offset));
}

void Puppet::die_while_closing() {
  parcel(PuppetVerb::kDieWhileClosing).send_to(pipe_);
  wait_for_end();
}

void Puppet::close_endpoint() { answer(pipe_, parcel(PuppetVerb::kCloseEndpoint)); }

void Puppet::signal(int number) const { ::kill(pid_, number); }

void Puppet::kill() {
  if (pid_ < 0) return;
  signal(SIGKILL);
  wait_for_end();
}

int Puppet::wait_for_end() {
  if (pid_ < 0) return -1;
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace leeway::conformance
