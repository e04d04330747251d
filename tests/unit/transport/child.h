// A second process with an endpoint: this test binary again, in the role of tests/unit/transport's
// "child" test case.
//
// It opens an endpoint with some registered memory, says where, sends "hello" to the parent's
// endpoint, answers each message with the same, and ends when its pipe is closed.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/unit/transport/fixture.h"

namespace leeway::transport::testing {

inline constexpr std::size_t kChildMemory = std::size_t{4} << 20;
inline constexpr int kLastWords = 8;

class Child {
 public:
  // When it exits, closing everything.
  enum class Leaves { kWhenTold, kAtOnce, kAfterLastWords };
  // At once: as soon as its hello is on the way, or could not be for a moment. After its last
  // words: when kLastWords hellos have gone.
  Child(const std::string& fabric, const Node& parent, Leaves leaves = Leaves::kWhenTold);
  ~Child();  // ends it gently when nobody killed it
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const noexcept { return pid_; }
  const std::vector<std::byte>& address() const noexcept { return address_; }
  RemoteRange memory(std::size_t offset = 0) const {
    return {std::make_shared<RemoteMemory>(1, Window{memory_, key_}), offset};
  }
  void signal(int number) const;
  void kill();  // SIGKILL, and waits for the end
  int wait();   // its exit status, -1 when a signal ended it

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
  std::vector<std::byte> address_;
  std::uint64_t memory_ = 0, key_ = 0;
};

}  // namespace leeway::transport::testing
