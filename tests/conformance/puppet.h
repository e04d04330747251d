// A second process with an endpoint, which does what it is told over a control pipe: this binary
// again (puppet_role.cc). Every call returns when the puppet has done it, or throws when the puppet
// is gone. What it begins it may be told to wait for.
//
// Called from the test's thread. The destructor ends it gently when nobody killed it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/conformance/node.h"

namespace leeway::conformance {

struct PuppetOptions {
  std::uint16_t port = 0;
  std::size_t max_transfer = transport::EndpointOptions{}.max_transfer;
  std::size_t open_files = 0;  // `ulimit -n`; 0 = as we have it
};

class Puppet {
 public:
  using Options = PuppetOptions;
  explicit Puppet(const Options& options = {});
  ~Puppet();
  Puppet(const Puppet&) = delete;
  Puppet& operator=(const Puppet&) = delete;

  pid_t pid() const noexcept { return pid_; }
  const std::vector<std::byte>& address() const noexcept { return address_; }
  const std::string& printable() const noexcept { return printable_; }

  // All its methods name its memories and peers by the numbers that these return.
  std::uint32_t allocate(std::size_t bytes, std::uint64_t seed);
  std::uint32_t connect(const std::vector<std::byte>& address);
  void disconnect(std::uint32_t peer);
  RemoteRange memory(std::uint32_t memory, std::uint64_t offset = 0) const;

  // What a transfer of the puppet's is made of.
  struct Transfer {
    std::uint32_t peer = 0;
    std::uint32_t memory = 0;
    std::uint64_t offset = 0, size = 0;
    RemoteRange remote;
    bool write = false;
    std::uint32_t times = 1;
    bool wait = true;  // else it is only begun
    milliseconds deadline{20000};
  };
  // How many went well; 0 when not waited for.
  std::uint32_t transfer(const Transfer& transfer);
  std::uint32_t send(std::uint32_t peer, const std::string& text, std::uint32_t times = 1,
                     bool wait = true);

  // Waits until it has received so many messages; their number, smaller when that took too long.
  std::uint32_t received(std::uint32_t at_least);
  std::uint64_t hash_of(std::uint32_t memory);

  // Its endpoint's thread stands still from here on.
  void stand_still();
  // It kills itself with -9 the moment that this byte of its memory is not 0 any more.
  void die_when_touched(std::uint32_t memory, std::uint64_t offset);
  // It begins this and dies of it, by die_when_touched().
  void die_transferring(const Transfer& transfer);
  // It begins to close its endpoint, and kills itself in the middle of that.
  void die_while_closing();
  // Closes its endpoint; the process stays.
  void close_endpoint();

  void signal(int number) const;
  void leave();        // closes everything and exits
  void kill();         // SIGKILL, and waits for the end
  int wait_for_end();  // its exit status, -1 when a signal ended it

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
  std::vector<std::byte> address_;
  std::string printable_;
  std::vector<std::shared_ptr<const RemoteMemory>> memories_;
};

// The other end: does what comes over the pipe until that is closed. The exit status of the
// process.
int run_puppet(int pipe, const PuppetOptions& options);

}  // namespace leeway::conformance
