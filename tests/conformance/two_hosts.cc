#include "tests/conformance/two_hosts.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>

namespace leeway::conformance {
namespace {

TwoHosts* the_hosts = nullptr;

void shell(const std::string& command) {
  if (std::system(command.c_str()) != 0)
    throw std::runtime_error("this failed, it needs root and iproute2: " + command);
}

}  // namespace

TwoHosts* two_hosts() { return the_hosts; }
void use_two_hosts(TwoHosts* hosts) { the_hosts = hosts; }

TwoHosts::TwoHosts() {
  if (unshare(CLONE_NEWNET) != 0)
    throw std::runtime_error("no network namespace can be made here: run this as root");
  int ready[2], end[2];
  if (pipe2(ready, O_CLOEXEC) != 0 || pipe2(end, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  holder_ = fork();
  if (holder_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(end[1]);
    const char good = unshare(CLONE_NEWNET) == 0 ? 1 : 0;
    if (write(ready[1], &good, 1) != 1) _exit(1);
    char nothing = 0;
    (void)!read(end[0], &nothing, 1);
    _exit(0);
  }
  close(ready[1]);
  close(end[0]);
  holders_pipe_ = end[1];
  char good = 0;
  if (read(ready[0], &good, 1) != 1 || good == 0) throw std::runtime_error("no second namespace");
  close(ready[0]);
  const std::string pid = std::to_string(holder_), there = "/proc/" + pid + "/ns/net";
  other_ = open(there.c_str(), O_RDONLY);
  const std::string inside = "nsenter --net=" + there + " ";
  shell("ip link set lo up && " + inside + "ip link set lo up");
  shell("ip link add cable type veth peer name cable netns " + pid);
  for (const int i : {0, 1}) {
    shell(std::string("ip address add ") + kHere[i] + "/24 dev cable");
    shell(inside + "ip address add " + kThere[i] + "/24 dev cable");
  }
  // An interface like any other, but nobody is at its other end.
  shell(std::string("ip link add nowhere type veth peer name lost && ip link set nowhere up && ") +
        "ip link set lost up && ip address add " + kNowhereHere + "/24 dev nowhere");
  shell(inside +
        "sh -c 'ip link add nowhere type veth peer name lost && ip link set nowhere up && " +
        "ip link set lost up && ip address add " + kNowhereThere + "/24 dev nowhere'");
  shell(std::string("ip link set cable up && ") + inside + "ip link set cable up");
  // What goes to the other host's second interface arrives, but no answer comes back.
  shell("ip route add 10.98.0.0/24 dev cable");
  shell(inside + "ip rule add from " + kNowhereThere + " blackhole");
}

TwoHosts::~TwoHosts() {
  close(holders_pipe_);
  close(other_);
  waitpid(holder_, nullptr, 0);
}

void TwoHosts::pull_cable() { shell("ip link set cable down"); }
void TwoHosts::plug_cable() {
  shell("ip link set cable up && ip route replace 10.98.0.0/24 dev cable");
}

}  // namespace leeway::conformance
