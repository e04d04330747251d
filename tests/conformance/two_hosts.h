// Two hosts in one machine: a network namespace for this process and one for its puppets, joined by
// a cable (veth) that can be pulled. Each has two addresses on it, and an interface that leads
// nowhere. All of it goes when the process ends.
//
// Made once, from the thread that makes all others, before there are any. Needs root and iproute2.
#pragma once

#include <sys/types.h>

#include <string>

namespace leeway::conformance {

class TwoHosts {
 public:
  static constexpr const char* kHere[] = {"10.77.1.1", "10.77.2.1"};
  static constexpr const char* kThere[] = {"10.77.1.2", "10.77.2.2"};
  static constexpr const char* kNowhereHere = "10.99.0.1";
  static constexpr const char* kNowhereThere = "10.98.0.1";

  TwoHosts();  // throws std::runtime_error: what could not be made
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  // The other host's network namespace, open for children.
  int other() const noexcept { return other_; }
  void pull_cable();
  void plug_cable();

 private:
  pid_t holder_ = -1;  // a process that keeps the other namespace alive
  int holders_pipe_ = -1;
  int other_ = -1;
};

// The one that main() made, or null.
TwoHosts* two_hosts();
void use_two_hosts(TwoHosts* hosts);

}  // namespace leeway::conformance
