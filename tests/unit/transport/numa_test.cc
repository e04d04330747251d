// Where servers keep their memory and compute, on recorded machines and on small ones made here.
#include <sched.h>

#include <thread>
#include <tuple>

#include "tests/unit/transport/inventory_machines.h"
#include "transport/nic_choice.h"
#include "transport/numa_bind.h"

namespace leeway::transport {
namespace {

// Of a server that uses these NICs; none: what the choice of NICs takes.
NumaPlan plan_for(const std::string& machine, const std::vector<std::string>& devices = {}) {
  const Topology topology = recorded(machine);
  std::vector<NicInUse> nics;
  for (const RailPlan& rail : choose_nics(topology, {.devices = devices}).rails)
    nics.push_back({rail.device, rail.numa_node, rail.rate_gbps});
  return choose_numa(topology.numa_nodes, nics, false);
}

const std::vector<NumaNode> kTwo = {{0, "0-3"}, {1, "4-7"}};

}  // namespace

TEST_CASE("a server with NICs of one node lives there, one with NICs of all nodes on all") {
  const NumaPlan near = plan_for("dgx_like", {"mlx5_6", "mlx5_9"});
  CHECK(near.nodes == std::vector{1});
  CHECK(near.cpus == "56-111,168-223");
  CHECK(describe(near) ==
        "memory and threads on NUMA node 1 (CPUs 56-111,168-223): 2 of the 2 NICs in use are there "
        "(mlx5_6 mlx5_9)");
  for (const char* machine : {"dgx_like", "p5_like"}) {
    CAPTURE(machine);
    const NumaPlan all = plan_for(machine);
    CHECK(all.nodes == std::vector{0, 1});
    CHECK(all.cpus.empty());
  }
  CHECK(plan_for("p5_like", {"rdmap79s0"}).cpus == "0-47,96-143");
  // 100 Gbit/s on one node, 50 on the other: half as many still count.
  CHECK(plan_for("uneven").nodes == std::vector{0, 1});
}

TEST_CASE("nothing is bound where there is nothing to choose, and it says why") {
  for (const char* machine : {"laptop", "soft_roce"}) {
    CAPTURE(machine);
    const NumaPlan plan = plan_for(machine);
    CHECK(plan.nodes.empty());
    CHECK(describe(plan) ==
          "memory and threads wherever the system puts them: the machine has one NUMA node");
  }
  const std::vector<NicInUse> nics = {{"eth0", 1, 25}};
  CHECK(choose_numa(kTwo, nics, true).nodes.empty());
  CHECK(choose_numa(kTwo, nics, true).why.find("was given some of the CPUs") != std::string::npos);
  for (const int node : {kNoNode, 7}) {
    const std::vector<NicInUse> unknown = {{"eth0", node, 25}};
    CHECK(choose_numa(kTwo, unknown, false).nodes.empty());
  }
  CHECK(choose_numa(kTwo, {}, false).why == "the NUMA node of no NIC in use is known");
}

TEST_CASE("the node that most bytes pass is chosen, by rates where all are known") {
  std::vector<NicInUse> nics = {{"a", 0, 10}, {"b", 0, 10}, {"c", 1, 100}, {"d", kNoNode, 10}};
  const NumaPlan plan = choose_numa(kTwo, nics, false);
  CHECK(plan.nodes == std::vector{1});
  CHECK(plan.why == "1 of the 4 NICs in use is there (c)");
  nics[2].rate_gbps = 0;  // now they are counted
  CHECK(choose_numa(kTwo, nics, false).nodes == std::vector{0, 1});
  nics.push_back({"e", 0, 10});
  CHECK(choose_numa(kTwo, nics, false).nodes == std::vector{0});
}

TEST_CASE("two nodes of four are both taken; a node without CPUs keeps memory alone") {
  const std::vector<NumaNode> four = {{0, "0-3"}, {1, "4-7"}, {2, "8-11"}, {4, ""}};
  const std::vector<NicInUse> two = {{"a", 0, 100}, {"b", 2, 100}};
  CHECK(choose_numa(four, two, false) ==
        NumaPlan{{0, 2}, "0-3,8-11", "the NICs in use are on all of these (a b)"});
  const std::vector<NicInUse> odd = {{"a", 4, 100}};
  CHECK(choose_numa(four, odd, false).nodes == std::vector{4});
  CHECK(choose_numa(four, odd, false).cpus.empty());
}

TEST_CASE("a thread that is bound stays on its CPUs, and so do those that it starts") {
  std::thread([] {
    cpu_set_t before;
    REQUIRE(sched_getaffinity(0, sizeof before, &before) == 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &before)) ++cpu;
    // The memory may not be bound where the system forbids it (containers do).
    std::ignore = bind_to({.nodes = {0}, .cpus = std::to_string(cpu)});
    CHECK(usable_cpus() == 1);
    std::thread([] { CHECK(usable_cpus() == 1); }).join();
  }).join();
  // Nothing to bind to: nothing happens.
  const unsigned before = usable_cpus();
  CHECK(bind_to({}).has_value());
  CHECK(usable_cpus() == before);
}

TEST_CASE("what cannot be bound is one line that names it") {
  const Status odd = bind_to({.nodes = {0}, .cpus = "4000"});
  REQUIRE(!odd);
  CHECK(odd.error().message.find("threads (") == 0);
  CHECK(odd.error().message.find('\n') == std::string::npos);
}

}  // namespace leeway::transport
