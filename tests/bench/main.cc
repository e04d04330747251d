// leeway-bench: figures of one part beside the limit measured in the same run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "common/optimizer.h"
#include "common/result.h"
#include "tests/bench/apply_bench.h"
#include "tests/bench/checksum_bench.h"
#include "tests/bench/contention_bench.h"
#include "tests/bench/latency_bench.h"
#include "tests/bench/peer_process.h"
#include "tests/bench/pushpull_bench.h"
#include "tests/bench/pushpull_member.h"
#include "tests/bench/small_bench.h"
#include "tests/bench/summary.h"
#include "tests/bench/transport_bench.h"

namespace {

// The optimizers of engines that push here one step after the other: all but lamb, which needs
// whole clocks.
std::vector<std::string> push_by_push() {
  std::vector<std::string> names = leeway::optimizer_names();
  std::erase(names, "lamb");
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace leeway::bench;
  CLI::App app("Measures a part of Leeway against the limit of this machine, in the same run.");
  app.require_subcommand(1);
  app.fallthrough();
  bool json = false;
  int rounds = 7;
  app.add_flag("--json", json, "one JSON object instead of a table");
  app.add_option("--rounds", rounds, "interleaved rounds, of which the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  std::string fabric = "tcp";
  const auto with_fabric = [&](CLI::App* command) {
    command->add_option("--fabric", fabric, "auto, efa, verbs, tcp or shm")->capture_default_str();
    return command;
  };

  CLI::App* apply = app.add_subcommand("apply", "the servers' update over a memory triad");
  std::size_t master_mib = 256;
  apply->add_option("--master-mib", master_mib, "MiB of FP32 master weights")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  CLI::App* transport = with_fabric(app.add_subcommand(
      "transport", "reads and writes between processes over the raw provider's"));
  CLI::App* pushpull = with_fabric(app.add_subcommand(
      "pushpull", "push and pull through the server engine over the raw provider's best"));
  PushPullOptions sizes;
  std::uint32_t servers = 1;
  std::vector<std::uint32_t> workers = {1, 2, 4};
  pushpull
      ->add_option("--servers", servers,
                   "server processes; default: 1, and a case of 2 servers and 2 workers")
      ->check(CLI::Range(1, 64));
  pushpull->add_option("--workers", workers, "worker processes, one case for each number")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  pushpull
      ->add_option("--model-mib", sizes.model_mib,
                   "MiB of FP32 weights; half of it travels, as FP16")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  pushpull->add_option("--partition-mib", sizes.partition_mib, "MiB of FP32 weights a partition")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  pushpull->add_option("--optimizer", sizes.optimizer, "of the servers")
      ->check(CLI::IsMember(push_by_push()))
      ->capture_default_str();
  pushpull
      ->add_option("--server-memory-limit", sizes.memory_limit,
                   "of each server, such as 20GiB; 0 = none")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  CLI::App* contention = with_fabric(
      app.add_subcommand("contention", "the update while two workers pull, over the update alone"));
  ContentionOptions contended;
  contention->add_option("--model-mib", contended.model_mib, "MiB of FP32 weights")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  contention
      ->add_option("--partition-mib", contended.partition_mib, "MiB of FP32 weights a partition")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  contention->add_option("--optimizer", contended.optimizer, "of the server")
      ->check(CLI::IsMember(push_by_push()))
      ->capture_default_str();
  contention->add_option("--threads", contended.threads, "that compute, one case for each number")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  CLI::App* small = with_fabric(app.add_subcommand(
      "small", "a step of 10,000 small tensors over a step of one as large as all"));
  CLI::App* latency = with_fabric(app.add_subcommand(
      "latency", "round trips of a small push with its commit, and what idling costs"));
  CLI::App* checksum = with_fabric(
      app.add_subcommand("checksum", "steps with checksums of the payloads over steps without"));
  // The other processes of a benchmark; started by this program alone.
  std::uint32_t index = 0;
  CLI::App* server = with_fabric(app.add_subcommand("pushpull-server", "")->group(""));
  CLI::App* worker = with_fabric(app.add_subcommand("pushpull-worker", "")->group(""));
  for (CLI::App* member : {server, worker}) member->add_option("--index", index)->required();
  CLI::App* peer = with_fabric(app.add_subcommand("peer", "")->group(""));
  std::size_t bytes = 0;
  peer->add_option("--bytes", bytes)->required();
  CLI11_PARSE(app, argc, argv);

  try {
    std::vector<Case> cases;
    if (*peer) return serve_as_peer(fabric, bytes);
    if (*server) return serve_as_server(fabric, index);
    if (*worker) return serve_as_worker(fabric, index);
    if (*apply) cases = run_apply({.master_bytes = master_mib << 20, .rounds = rounds});
    if (*transport) cases = run_transport({.fabric = fabric, .rounds = rounds});
    if (*small) cases = run_small({.fabric = fabric, .rounds = rounds});
    if (*checksum) cases = run_checksum({.fabric = fabric, .rounds = rounds});
    if (*latency) cases = run_latency({.fabric = fabric, .rounds = rounds});
    if (*contention) {
      contended.fabric = fabric;
      contended.rounds = rounds;
      cases = run_contention(contended);
    }
    if (*pushpull) {
      sizes.fabric = fabric;
      sizes.rounds = rounds;
      if (pushpull->count("--servers") + pushpull->count("--workers") > 0) {
        sizes.sizes.clear();
        for (const std::uint32_t count : workers) sizes.sizes.push_back({servers, count});
      }
      cases = run_pushpull(sizes);
    }
    const std::string name = app.get_subcommands().front()->get_name();
    std::fputs((json ? as_json(name, cases) : as_table(cases)).c_str(), stdout);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "leeway-bench: {}\n", error.what());
    return 1;
  }
}
