// The checks on facts made up here, the readers of facts on file trees, and the program itself.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/unit/transport/inventory_machines.h"
#include "transport/doctor/checks.h"
#include "transport/doctor/doctor.h"

namespace leeway::doctor {
namespace {

namespace fs = std::filesystem;
using transport::recorded;
using transport::Topology;

constexpr std::uint64_t kGiB = 1ull << 30;

// A machine on which nothing is to be changed.
Facts good() {
  return {.kernel = "6.1.0-18-amd64",
          .locked_memory = kUnlimited,
          .locked_memory_hard = kUnlimited,
          .open_files = 65536,
          .open_files_hard = 65536,
          .sealed_memory = true,
          .huge_pages = {.reserved = 0, .free = 0, .page_bytes = 2 << 20, .transparent = "madvise"},
          .fork = ForkSafety::kNotNeeded,
          .gpu = {.driver = "550.54.15", .open_driver = true, .peer_module = "nvidia_peermem"},
          .fabric = {.major = 1,
                     .minor = 17,
                     .offers = {{"verbs",
                                 "verbs;ofi_rxm",
                                 {"mlx5_0", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_9",
                                  "mlx5_10", "mlx5_11"}}}}};
}

bool has(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  return text.find(part) != std::string::npos;
}

NicOutcome outcome(const Topology& topology, const transport::RailRequest& request = {}) {
  return {transport::choose_nics(topology, request), ""};
}

struct Run {
  int status;
  std::string out, err;
};
Run doctor(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const int status = run_doctor(arguments, out, err);
  return {status, out.str(), err.str()};
}

std::string topology_path(const std::string& name) {
  return std::string(LEEWAY_TOPOLOGIES) + "/" + name + ".topology";
}

class Scratch {
 public:
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "leeway-doctor.XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~Scratch() {
    std::error_code error;
    fs::remove_all(path_, error);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const fs::path& path() const noexcept { return path_; }
  void file(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text << "\n";
  }

 private:
  fs::path path_;
};

}  // namespace

TEST_CASE("doctor: nothing to change on a machine that has all") {
  const Topology dgx = recorded("dgx_like");
  const auto findings = check_all(good(), dgx, {}, outcome(dgx));
  for (const Finding& finding : findings) {
    CAPTURE(finding.name);
    CAPTURE(finding.found);
    CHECK(finding.level == Level::kOk);
    CHECK(finding.change.empty());
    CHECK(!finding.found.empty());
  }
  CHECK(ready(findings));
}

TEST_CASE("doctor: locked memory is judged by what the family pins and the job needs") {
  Facts facts = good();
  CHECK(has(check_locked_memory(facts, "verbs", 40 * kGiB).found,
            "unlimited; needed for 40 GiB: 40.06 GiB"));
  facts.locked_memory = facts.locked_memory_hard = 8 << 20;
  const Finding small = check_locked_memory(facts, "verbs", std::nullopt);
  CHECK(small.level == Level::kProblem);
  CHECK(has(small.change, "ulimit -l unlimited (the hard limit is 8388608"));
  CHECK(has(small.change, "LimitMEMLOCK=infinity"));
  CHECK(check_locked_memory(facts, "tcp", 40 * kGiB).level == Level::kOk);
  facts.may_lock_all = true;
  CHECK(check_locked_memory(facts, "efa", 40 * kGiB).level == Level::kOk);
  facts.may_lock_all = false;

  facts.locked_memory = 32 * kGiB;
  CHECK(check_locked_memory(facts, "efa", std::nullopt).level == Level::kWarning);
  CHECK(check_locked_memory(facts, "efa", 31 * kGiB).level == Level::kOk);
  CHECK(check_locked_memory(facts, "efa", 32 * kGiB).level == Level::kProblem);
  CHECK(check_locked_memory(facts, "efa", kUnlimited - 5).level == Level::kProblem);
}

TEST_CASE("doctor: descriptors") {
  Facts facts = good();
  facts.open_files = 1023;
  CHECK(check_open_files(facts).level == Level::kWarning);
  facts.open_files = 63;
  const Finding few = check_open_files(facts);
  CHECK(few.level == Level::kProblem);
  CHECK(has(few.change, "ulimit -n 65536"));
  facts.open_files = kUnlimited;
  CHECK(check_open_files(facts).level == Level::kOk);
}

TEST_CASE("doctor: without sealed memfds a job over shm cannot run, others can") {
  Facts facts = good();
  CHECK(check_shared_memory(facts, "shm").level == Level::kOk);
  facts.sealed_memory = false;
  CHECK(check_shared_memory(facts, "tcp").level == Level::kWarning);
  CHECK(check_shared_memory(facts, "shm").level == Level::kProblem);
  CHECK(has(check_shared_memory(facts, "shm").change, "memfd_create"));
}

TEST_CASE("doctor: huge pages") {
  HugePageFacts pages = good().huge_pages;
  pages.reserved = 512;
  pages.free = 500;
  CHECK(has(check_huge_pages(pages).found, "512 of 2 MiB, 500 free"));
  CHECK(check_huge_pages(pages).level == Level::kOk);
  pages.transparent = "never";
  CHECK(check_huge_pages(pages).level == Level::kWarning);
  pages.transparent = "";
  CHECK(has(check_huge_pages(pages).found, "not in this kernel"));
}

TEST_CASE("doctor: fork, where memory is pinned and the kernel does not copy such pages") {
  Facts facts = good();
  CHECK(check_fork(facts, "tcp").level == Level::kOk);
  facts.fork = ForkSafety::kOff;
  CHECK(check_fork(facts, "verbs").level == Level::kOk);  // kernel 6.1
  facts.kernel = "5.10.0-28-amd64";
  CHECK(check_fork(facts, "verbs").level == Level::kWarning);
  CHECK(check_fork(facts, "verbs").change == "export RDMAV_FORK_SAFE=1");
  CHECK(has(check_fork(facts, "efa").change, "FI_EFA_FORK_SAFE=1"));
  CHECK(check_fork(facts, "tcp").level == Level::kOk);
  facts.fork = ForkSafety::kOn;
  CHECK(check_fork(facts, "verbs").level == Level::kOk);
}

TEST_CASE("doctor: how NICs reach GPU memory") {
  const Topology dgx = recorded("dgx_like");
  Facts facts = good();
  CHECK(has(check_gpu_memory(facts, "verbs", dgx).found,
            "8 GPUs, NVIDIA driver 550.54.15 (open); "
            "NICs reach it (nvidia_peermem)"));
  CHECK(check_gpu_memory(facts, "verbs", recorded("laptop")).found == "no GPU");
  facts.gpu.peer_module = "";
  CHECK(has(check_gpu_memory(facts, "efa", dgx).found, "dmabuf lacks libfabric 1.20 or newer"));
  facts.fabric.minor = 20;
  CHECK(has(check_gpu_memory(facts, "efa", dgx).found, "(dmabuf)"));
  facts.gpu.dmabuf_move_notify = Option::kNo;
  CHECK(has(check_gpu_memory(facts, "efa", dgx).found, "dmabuf lacks CONFIG_DMABUF_MOVE_NOTIFY"));
  facts.gpu.dmabuf_move_notify = Option::kYes;
  facts.gpu.pci_p2pdma = Option::kNo;
  facts.kernel = "5.10.0";
  facts.gpu.open_driver = false;
  const Finding closed = check_gpu_memory(facts, "verbs", dgx);
  CHECK(closed.level == Level::kWarning);
  CHECK(has(closed.found, "open kernel modules, 515 or newer, a kernel from 5.12 on, CONFIG_PCI"));
  CHECK(has(closed.change, "modprobe nvidia_peermem"));
  CHECK(check_gpu_memory(facts, "tcp", dgx).level == Level::kOk);
  facts.gpu.driver = "";
  CHECK(check_gpu_memory(facts, "tcp", dgx).level == Level::kWarning);
}

TEST_CASE("doctor: an old libfabric is a problem; idle hardware a warning; tcp needs none") {
  const Topology dgx = recorded("dgx_like");
  Facts facts = good();
  CHECK(
      has(check_libfabric(facts.fabric, dgx).found, "1.17; verbs: verbs;ofi_rxm (mlx5_0, mlx5_3"));
  facts.fabric.minor = 16;
  CHECK(check_libfabric(facts.fabric, dgx).level == Level::kProblem);
  facts.fabric = {.major = 2, .minor = 1, .offers = {}};
  const Finding idle = check_libfabric(facts.fabric, dgx);
  CHECK(idle.level == Level::kWarning);
  CHECK(has(idle.found, "nothing for mlx5_0, mlx5_1"));
  CHECK(has(idle.change, "ibverbs-providers"));
  CHECK(check_libfabric(facts.fabric, recorded("laptop")).level == Level::kOk);
}

TEST_CASE("doctor: NICs, and the family that the other checks go by") {
  const Topology p5 = recorded("p5_like");
  FabricFacts fabric = good().fabric;
  fabric.offers = {{"efa", "efa", {}}};
  for (const auto& rail : transport::choose_rails(p5, {}))
    fabric.offers[0].domains.push_back(rail.domain);
  const Finding all = check_nics({}, outcome(p5), fabric, p5);
  CHECK(all.level == Level::kOk);
  CHECK(has(all.found, "32 rails by efa: rdmap79s0, "));
  fabric.offers[0].domains.erase(fabric.offers[0].domains.begin());
  const Finding hidden = check_nics({}, outcome(p5), fabric, p5);
  CHECK(hidden.level == Level::kWarning);
  CHECK(has(hidden.found, "libfabric does not name rdmap79s0-rdm"));
  CHECK(family_in_use({}, outcome(p5)) == "efa");
  const NicOutcome none{std::nullopt, "fabric efa: no NIC here can be used"};
  CHECK(check_nics({.fabric = "efa"}, none, fabric, p5).level == Level::kProblem);
  CHECK(family_in_use({.fabric = "efa"}, none) == "efa");
  CHECK(family_in_use({}, none).empty());
  CHECK(check_nics({.fabric = "shm"}, {}, fabric, p5).level == Level::kOk);

  Topology laptop = recorded("laptop");
  CHECK(check_nics({}, outcome(laptop), fabric, laptop).level == Level::kOk);
  const NicOutcome alone = outcome(laptop, {.devices = {"lo"}});
  CHECK(check_nics({}, alone, fabric, laptop).level == Level::kWarning);
  laptop.nics.push_back({.name = "mlx5_0", .driver = transport::Family::kVerbs});
  CHECK(has(check_nics({}, outcome(laptop), fabric, laptop).found, "mlx5_0 cannot be opened"));
}

TEST_CASE("doctor: only problems keep a job from running") {
  CHECK(ready({{"a", Level::kOk, "", ""}, {"b", Level::kWarning, "", ""}}));
  CHECK(!ready({{"a", Level::kOk, "", ""}, {"b", Level::kProblem, "", ""}}));
}

TEST_CASE("doctor reads facts from the kernel's files") {
  const Scratch root;
  CHECK(read_huge_pages(root.path()).transparent.empty());
  CHECK(!has_capability(root.path(), 14));
  CHECK(read_gpu_facts(root.path(), "6.1.0").pci_p2pdma == Option::kUnknown);

  root.file(
      "proc/meminfo",
      "MemTotal: 1 kB\nHugePages_Total:     512\nHugePages_Free:      500\nHugepagesize: 2048 kB");
  root.file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never");
  const HugePageFacts pages = read_huge_pages(root.path());
  CHECK(pages.reserved == 512);
  CHECK(pages.free == 500);
  CHECK(pages.page_bytes == 2 << 20);
  CHECK(pages.transparent == "madvise");
  root.file("proc/self/status", "Name: x\nCapEff:\t0000000000004000");
  CHECK(has_capability(root.path(), 14));
  CHECK(!has_capability(root.path(), 19));
  root.file("sys/module/nvidia/version", "550.54.15");
  root.file("proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15");
  root.file("sys/module/nvidia_peermem/refcnt", "0");
  root.file("boot/config-6.1.0", "CONFIG_PCI_P2PDMA=y\n# CONFIG_DMABUF_MOVE_NOTIFY is not set");
  const GpuFacts gpu = read_gpu_facts(root.path(), "6.1.0");
  CHECK(gpu.driver == "550.54.15");
  CHECK(gpu.open_driver);
  CHECK(gpu.peer_module == "nvidia_peermem");
  CHECK(gpu.pci_p2pdma == Option::kYes);
  CHECK(gpu.dmabuf_move_notify == Option::kNo);
}

TEST_CASE("doctor: a recorded machine's choice, in text and in JSON") {
  const Run text = doctor({"--topology", topology_path("dgx_like")});
  CHECK(text.status == 0);
  CHECK(has(text.out, "Rails (fabric auto: verbs)"));
  CHECK(has(text.out,
            "  mlx5_1   verbs  0000:29:00.0  node 0  active  ethernet    200 Gbit/s  "
            "enp41s0f0np0   10.2.0.17\n"));
  CHECK(has(text.out, "mlx5_1  ethernet, and the rails are infiniband"));
  CHECK(has(text.out, "0000:c3:00.0  mlx5_9   same switch"));
  CHECK(has(text.out, "memory spread over NUMA nodes 0 and 1, threads on any CPU"));
  CHECK(!has(text.out, "Checks"));

  const Run json = doctor({"--topology", topology_path("p5_like"), "--json"});
  const auto report = nlohmann::json::parse(json.out);
  CHECK(report["ready"] == true);
  CHECK(report["choice"]["family"] == "efa");
  CHECK(report["choice"]["rails"].size() == 32);
  CHECK(report["choice"]["rails"][0]["address"].is_null());
  CHECK(report["choice"]["gpus"][7]["rails"][3] == "rdmap201s0");
  CHECK(report["nics"][0]["ports"][0]["rate_gbps"] == 100);
  CHECK(report["numa_nodes"][1]["cpus"] == "48-95,144-191");
  CHECK(report["servers"]["numa_nodes"] == std::vector<int>{0, 1});
  CHECK(report["servers"]["cpus"].is_null());

  const Run none = doctor({"--topology", topology_path("laptop"), "--fabric", "efa", "--json"});
  CHECK(none.status == 1);
  CHECK(nlohmann::json::parse(none.out)["choice"].is_null());
  CHECK(nlohmann::json::parse(none.out)["ready"] == false);
}

TEST_CASE("doctor: this machine can run a job by tcp; it can be recorded and shown again") {
  const Scratch scratch;
  const std::string file = (scratch.path() / "here.topology").string();
  const Run here = doctor({"--record", file, "--json", "--fabric", "tcp", "--memory", "1GiB"});
  const auto live = nlohmann::json::parse(here.out);
  CHECK(live["checks"].size() == 8);
  CHECK(has(live["checks"][2]["found"], "needed for 1 GiB"));
  const Run again = doctor({"--topology", file, "--json", "--fabric", "tcp"});
  CHECK(nlohmann::json::parse(again.out)["nics"] == live["nics"]);
  CHECK(nlohmann::json::parse(again.out)["choice"] == live["choice"]);
}

TEST_CASE("doctor: what was typed wrong is one line and exit code 2") {
  const std::vector<std::vector<std::string>> wrong = {
      {"--fabric", "rocket"},     {"--memory", "much"},
      {"--topologie", "x"},       {"--topology", "/nowhere/x"},
      {"--topology", "/"},        {"--topology", "/dev/zero"},
      {"--record", "/nowhere/x"}, {"--record", "x", "--topology", topology_path("laptop")}};
  for (const auto& arguments : wrong) {
    const Run run = doctor(arguments);
    CAPTURE(run.err);
    CHECK(run.status == 2);
    CHECK(run.out.empty());
    CHECK(run.err.starts_with("leeway-doctor: "));
    CHECK(run.err.find('\n') == run.err.size() - 1);
  }
  CHECK(has(doctor({"--topology", "/nowhere/x"}).err, "No such file"));
  CHECK(doctor({"--help"}).status == 0);
}

}  // namespace leeway::doctor
