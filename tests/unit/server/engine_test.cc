// The engine over a real fabric in one process: a worker that speaks the messages by hand.
#include "server/engine.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <thread>

#include "common/half.h"
#include "kernels/codec.h"
#include "transport/crc32c.h"

namespace leeway::server {
namespace {

constexpr milliseconds kDeadline{20000};
constexpr std::uint64_t kJob = 99;
constexpr std::uint64_t kElements = 100000;
constexpr std::uint32_t kPartitions = 2;

std::unique_ptr<transport::Endpoint> open_endpoint(const std::string& fabric) {
  return transport::Endpoint::open({.fabric = fabric, .peers = 4});
}

// A worker's end. Messages from the server arrive in `inbox`.
class FakeWorker {
 public:
  explicit FakeWorker(const std::string& fabric = "tcp", std::uint32_t id = 0)
      : id_(id), endpoint_(open_endpoint(fabric)) {
    renew_memory();
    endpoint_->start([this](std::span<const std::byte> frame) {
      const std::lock_guard lock(mutex_);
      while (!frame.empty()) {
        auto message = transport::decode_next(frame);
        if (message) inbox_.push_back(std::move(message->body));
      }
      changed_.notify_all();
    });
  }
  ~FakeWorker() { endpoint_.reset(); }

  // What there was is gone. Not while something moves.
  void renew_memory() {
    memory_ =
        value_or_throw(endpoint_->allocate(kPartitions * kElements * 4, transport::Access::kPeers));
  }

  const std::vector<std::byte>& address() const { return endpoint_->info().address; }
  template <typename T>
  std::span<T> values(std::uint32_t partition) {
    auto* data = reinterpret_cast<T*>(memory_.bytes().data() + partition * kElements * 4);
    return {data, kElements};
  }
  std::uint64_t remote(std::uint32_t partition) const { return partition * kElements * 4; }
  std::shared_ptr<const transport::RemoteMemory> memory() const { return memory_.remote(); }

  void send(const std::vector<std::byte>& server, const std::vector<transport::Body>& bodies) {
    std::vector<std::byte> frame;
    for (const transport::Body& body : bodies) {
      const auto message = transport::encode({kJob, Incarnation(5), id_}, body);
      frame.insert(frame.end(), message.begin(), message.end());
    }
    endpoint_->post([this, server, frame = std::move(frame)] {
      const auto peer = endpoint_->connect(server);
      if (peer) endpoint_->send(*peer, frame, MonotonicClock::now() + kDeadline);
    });
  }
  void send(const std::vector<std::byte>& server, transport::Body body) {
    send(server, std::vector{std::move(body)});
  }
  // The first message of this kind for which `wanted` holds; taken out.
  template <typename T>
  T expect(const std::function<bool(const T&)>& wanted = [](const T&) { return true; }) {
    std::unique_lock lock(mutex_);
    std::optional<T> found;
    const bool came = changed_.wait_for(lock, kDeadline, [&] {
      for (auto it = inbox_.begin(); it != inbox_.end(); ++it)
        if (const auto* message = std::get_if<T>(&*it); message != nullptr && wanted(*message)) {
          found = *message;
          inbox_.erase(it);
          return true;
        }
      return false;
    });
    REQUIRE(came);
    return *found;
  }

  // Pushes every partition and waits until all are taken.
  void push(const std::vector<std::byte>& server, std::uint64_t clock, bool initial) {
    transport::Push push{.clock = Clock(clock), .memory = memory()};
    for (std::uint32_t p = 0; p < kPartitions; ++p)
      push.entries.push_back({.partition = PartitionId(p),
                              .scale = initial ? 1.0f : 2.0f,
                              .offset = remote(p),
                              .bytes = kElements * (initial ? 4 : 2),
                              .codec = initial ? transport::Codec::kF32 : transport::Codec::kF16,
                              .initial = initial});
    send(server, push);
    std::size_t taken = 0;
    while (taken < kPartitions) taken += expect<transport::PushTaken>().partitions.size();
  }
  void end(const std::vector<std::byte>& server, std::uint64_t clock, transport::Ending ending) {
    const std::byte state{static_cast<unsigned char>(clock)};
    send(server,
         transport::Commit{.clock = Clock(clock), .ending = ending, .worker_state = {state}});
    CHECK(expect<transport::Committed>().ending == ending);
  }
  transport::Pulled pull(const std::vector<std::byte>& server, std::uint64_t clock,
                         std::uint32_t request, Version have = Version(0)) {
    transport::Pull pull{
        .clock = Clock(clock), .request = request, .total = kPartitions, .memory = memory()};
    for (std::uint32_t p = 0; p < kPartitions; ++p)
      pull.entries.push_back({PartitionId(p), have, remote(p)});
    send(server, pull);
    return expect<transport::Pulled>();
  }

 private:
  const std::uint32_t id_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<transport::Body> inbox_;  // guarded by mutex_
  std::unique_ptr<transport::Endpoint> endpoint_;
  transport::RegisteredMemory memory_;
};

EngineConfig config_for(const std::string& checkpoint_dir, const std::string& restore = "",
                        std::uint64_t clock = 0) {
  EngineConfig config{.server = ServerId(0),
                      .incarnation = Incarnation(1),
                      .job = kJob,
                      .tensors = {{"w", {kPartitions * kElements}, {}}},
                      .checkpoint_dir = checkpoint_dir,
                      .restore = restore,
                      .threads = 2};
  config.settings.optimizer.value = "momentum";
  config.settings.learning_rate = 1.0;
  config.settings.momentum = 0.5;
  config.settings.pull_dtype.value = "f32";
  for (std::uint32_t p = 0; p < kPartitions; ++p)
    config.partitions.push_back({PartitionId(p), 0, p * kElements, kElements});
  config.workers[WorkerId(0)] = {Incarnation(5), Clock(clock), {}};
  return config;
}

EngineView view_for(const FakeWorker& worker, std::int64_t epoch,
                    const JobSettings& settings = config_for("").settings) {
  EngineView view{.epoch = epoch, .initializer = WorkerId(0), .settings = settings};
  view.workers.push_back(
      {{WorkerId(0), Incarnation(5), WorkerPhase::kLive, Clock(0)}, worker.address()});
  return view;
}

// Asks until the report is as wanted.
EngineReport await(Engine& engine, const std::function<bool(const EngineReport&)>& wanted) {
  const TimePoint until = MonotonicClock::now() + kDeadline;
  while (true) {
    auto report = engine.report();
    REQUIRE(report);
    if (wanted(*report)) return *report;
    REQUIRE(MonotonicClock::now() < until);
    std::this_thread::yield();
  }
}

struct Server {
  explicit Server(const EngineConfig& config, const std::string& fabric = "tcp")
      : Server(config, open_endpoint(fabric)) {}
  Server(const EngineConfig& config, std::unique_ptr<transport::Endpoint> endpoint)
      : address(endpoint->info().address),
        engine(std::make_unique<Engine>(std::move(endpoint), config)) {}
  std::vector<std::byte> address;
  std::unique_ptr<Engine> engine;
};

// Of this process: memories for peers, ours and theirs.
std::size_t mapped_memories() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("/memfd:leeway (deleted)") != std::string::npos ? 1 : 0;
  return count;
}

template <typename T>
bool all(std::span<T> values, T wanted) {
  return std::ranges::all_of(values, [&](T value) { return value == wanted; });
}

}  // namespace

TEST_CASE("initial values, steps, pulls, a checkpoint and a restore") {
  std::string fabric;
  SUBCASE("tcp") { fabric = "tcp"; }
  SUBCASE("shm, where gradients are mapped") { fabric = "shm"; }
  CAPTURE(fabric);
  const auto dir =
      std::filesystem::temp_directory_path() / ("leeway_engine_test_" + std::to_string(::getpid()));
  std::filesystem::create_directories(dir);
  {
    FakeWorker worker(fabric);
    Server server(config_for(dir.string()), fabric);
    server.engine->view(view_for(worker, 1));
    for (std::uint32_t p = 0; p < kPartitions; ++p)
      std::ranges::fill(worker.values<float>(p), 10.0f);
    worker.push(server.address, 0, true);
    worker.end(server.address, 0, transport::Ending::kInitial);
    auto pulled = worker.pull(server.address, 0, 1);
    CHECK(pulled.total == kPartitions);
    CHECK(pulled.entries[0].version == Version(1));

    // Two steps of gradient 1 at scale 2: momentum 1, then 1.5.
    for (std::uint64_t clock = 0; clock < 2; ++clock) {
      for (std::uint32_t p = 0; p < kPartitions; ++p)
        std::ranges::fill(worker.values<Half>(p), to_half(2.0f));
      worker.push(server.address, clock, false);
      worker.end(server.address, clock, transport::Ending::kCommit);
      pulled = worker.pull(server.address, clock + 1, static_cast<std::uint32_t>(clock) + 2);
      CHECK(pulled.slowest == Clock(clock + 1));
      for (std::uint32_t p = 0; p < kPartitions; ++p)
        CHECK(all(worker.values<float>(p), clock == 0 ? 9.0f : 7.5f));
    }
    // What the worker has already is not written again.
    std::ranges::fill(worker.values<float>(0), -1.0f);
    pulled = worker.pull(server.address, 2, 4, Version(3));
    CHECK(pulled.entries.size() == kPartitions);
    CHECK(all(worker.values<float>(0), -1.0f));

    EngineView view = view_for(worker, 2);
    view.order = EngineView::Order::kHold;
    view.checkpoint = "000001";
    server.engine->view(view);
    const EngineReport held =
        await(*server.engine, [](const EngineReport& r) { return r.held == "000001"; });
    CHECK(held.applied.at(WorkerId(0)) == Clock(2));
    view.epoch = 3;
    view.order = EngineView::Order::kCut;
    view.cut = held.applied;
    server.engine->view(view);
    const EngineReport saved = await(*server.engine, [](const EngineReport& r) {
      return r.durable.has_value() || !r.checkpoint_error.empty();
    });
    CHECK(saved.checkpoint_error == "");
    REQUIRE(saved.durable);
    CHECK(saved.durable->updates == 2);
    CHECK(saved.durable->worker_states.at(WorkerId(0)) == std::vector<std::byte>{std::byte{1}});
    CHECK(saved.updates == 2);

    auto manifests = storage::ManifestStore::open(dir.string());
    REQUIRE(manifests);
    storage::Manifest manifest{.id = "000001",
                               .created_unix_s = 1,
                               .tensors = {{"w", {kPartitions * kElements}}},
                               .state_arrays = 1,
                               .updates = saved.durable->updates,
                               .shard_digests = {saved.durable->digest},
                               .bytes = saved.durable->bytes};
    for (std::uint32_t p = 0; p < kPartitions; ++p)
      manifest.partitions.push_back({0, p * kElements, kElements, 0});
    manifest.workers[0] = {Clock(2), {std::byte{1}}};
    CHECK((*manifests)->commit(manifest));
  }
  {
    FakeWorker worker(fabric);
    Server server(config_for(dir.string(), "000001", 2), fabric);
    server.engine->view(view_for(worker, 1));
    auto pulled = worker.pull(server.address, 2, 1);
    CHECK(pulled.entries[0].version == Version(3));
    CHECK(all(worker.values<float>(1), 7.5f));
    // The momentum is back too: 0.5 * 1.5 + 1.
    for (std::uint32_t p = 0; p < kPartitions; ++p)
      std::ranges::fill(worker.values<Half>(p), to_half(2.0f));
    worker.push(server.address, 2, false);
    worker.end(server.address, 2, transport::Ending::kCommit);
    pulled = worker.pull(server.address, 3, 2);
    CHECK(all(worker.values<float>(0), 5.75f));
  }
  std::filesystem::remove_all(dir);
}

// What each step of gradient 1 takes off the weights.
std::vector<float> changes(FakeWorker& worker, const Server& server, std::uint64_t steps) {
  for (std::uint32_t p = 0; p < kPartitions; ++p)
    std::ranges::fill(worker.values<float>(p), 100.0f);
  worker.push(server.address, 0, true);
  worker.end(server.address, 0, transport::Ending::kInitial);
  worker.pull(server.address, 0, 1);
  std::vector<float> taken;
  float before = 100.0f;
  for (std::uint64_t clock = 0; clock < steps; ++clock) {
    for (std::uint32_t p = 0; p < kPartitions; ++p)
      std::ranges::fill(worker.values<Half>(p), to_half(2.0f));
    worker.push(server.address, clock, false);  // at scale 2
    worker.end(server.address, clock, transport::Ending::kCommit);
    worker.pull(server.address, clock + 1, static_cast<std::uint32_t>(clock) + 2);
    CHECK(all(worker.values<float>(1), worker.values<float>(0)[0]));
    taken.push_back(before - worker.values<float>(0)[0]);
    before = worker.values<float>(0)[0];
  }
  return taken;
}

// The second half of a tensor lies on another server.
EngineConfig half_of_a_tensor(std::uint32_t server, const std::vector<std::byte>& other) {
  EngineConfig config = config_for("");
  config.server = ServerId(server);
  config.incarnation = Incarnation(1 + server);
  config.servers = 2;
  config.tensors = {{"w", {2 * kPartitions * kElements}, {ServerId(1 - server)}}};
  config.others[ServerId(1 - server)] = {Incarnation(2 - server), other};
  for (EngineConfig::Partition& partition : config.partitions)
    partition.begin += server * kPartitions * kElements;
  config.settings.optimizer.value = "lamb";
  config.settings.update.value = "per_clock";
  config.settings.learning_rate = 0.1;
  return config;
}

TEST_CASE("lamb: two servers update by the norms of the tensor that both have") {
  std::string fabric;
  SUBCASE("tcp") { fabric = "tcp"; }
  SUBCASE("shm") { fabric = "shm"; }
  CAPTURE(fabric);
  auto first = open_endpoint(fabric), second = open_endpoint(fabric);
  const auto first_address = first->info().address, second_address = second->info().address;
  const EngineConfig configs[] = {half_of_a_tensor(0, second_address),
                                  half_of_a_tensor(1, first_address)};
  FakeWorker worker(fabric);
  Server servers[] = {{configs[0], std::move(first)}, {configs[1], std::move(second)}};
  float expected[] = {10.0f, 20.0f};
  for (int s = 0; s < 2; ++s) {
    servers[s].engine->view(view_for(worker, 1, configs[s].settings));
    for (std::uint32_t p = 0; p < kPartitions; ++p)
      std::ranges::fill(worker.values<float>(p), expected[s]);
    worker.push(servers[s].address, 0, true);
    worker.end(servers[s].address, 0, transport::Ending::kInitial);
  }
  std::uint32_t request = 0;
  for (std::uint64_t clock = 0; clock < 3; ++clock) {
    for (std::uint32_t p = 0; p < kPartitions; ++p)
      std::ranges::fill(worker.values<Half>(p), to_half(2.0f));
    for (const Server& server : servers) worker.push(server.address, clock, false);
    for (const Server& server : servers)
      worker.end(server.address, clock, transport::Ending::kCommit);
    // Every change is 1 at a ratio of 1: the ratio is the root of the mean square of the weights.
    const float ratio = std::sqrt((expected[0] * expected[0] + expected[1] * expected[1]) / 2);
    for (int s = 0; s < 2; ++s) {
      worker.pull(servers[s].address, clock + 1, ++request);
      expected[s] -= 0.1f * ratio;
      const float now = worker.values<float>(0)[0];
      CHECK(now == doctest::Approx(expected[s]).epsilon(1e-5));
      for (std::uint32_t p = 0; p < kPartitions; ++p) CHECK(all(worker.values<float>(p), now));
    }
  }
}

TEST_CASE("lamb: a server whose norms do not come is named, and the server gives up") {
  auto silent = open_endpoint("tcp");
  silent->start([](std::span<const std::byte>) {});
  EngineConfig config = half_of_a_tensor(0, silent->info().address);
  config.norm_patience = milliseconds(30);
  FakeWorker worker;
  Server server(config);
  server.engine->view(view_for(worker, 1, config.settings));
  worker.push(server.address, 0, true);
  worker.end(server.address, 0, transport::Ending::kInitial);
  worker.push(server.address, 0, false);
  worker.end(server.address, 0, transport::Ending::kCommit);
  const EngineReport report =
      await(*server.engine, [](const EngineReport& r) { return !r.fault.empty(); });
  CHECK(report.fault.find("the update of clock 0 waited") != std::string::npos);
  CHECK(report.fault.find("for server.1 (its part of the norms of 'w')") != std::string::npos);
}

TEST_CASE("N8: a learning rate that falls at step 10 changes step 11 by the new one") {
  EngineConfig config = config_for("");
  config.settings.optimizer.value = "sgd";
  config.settings.schedule.value = "step";
  config.settings.schedule_steps = 10;
  config.settings.schedule_factor = 0.5;
  FakeWorker worker;
  Server server(config);
  server.engine->view(view_for(worker, 1, config.settings));
  std::vector<float> expected(10, 1.0f);
  expected.insert(expected.end(), {0.5f, 0.5f});
  CHECK(changes(worker, server, 12) == expected);
}

TEST_CASE(
    "with delay compensation the weights of each pull are kept, and a fresh gradient is as it is") {
  EngineConfig config = config_for("");
  config.settings.optimizer.value = "sgd";
  config.settings.delay_compensation = 0.5;
  FakeWorker worker;
  Server server(config);
  server.engine->view(view_for(worker, 1, config.settings));
  CHECK(changes(worker, server, 4) == std::vector<float>(4, 1.0f));
}

TEST_CASE("a payload is verified, read again when it is damaged, and refused the second time") {
  FakeWorker worker;
  Server server(config_for(""));
  server.engine->view(view_for(worker, 1));
  std::ranges::fill(worker.values<float>(0), 10.0f);
  const auto payload = std::as_bytes(worker.values<float>(0));
  transport::Push push{.clock = Clock(0), .memory = worker.memory()};
  push.entries = {{.partition = PartitionId(0),
                   .offset = 0,
                   .bytes = payload.size(),
                   .codec = transport::Codec::kF32,
                   .initial = true,
                   .checksum = transport::crc32c(payload)}};
  worker.send(server.address, push);
  CHECK(worker.expect<transport::PushTaken>().partitions.size() == 1);
  push.entries[0].partition = PartitionId(1);
  push.entries[0].checksum = *push.entries[0].checksum ^ 1;
  worker.send(server.address, push);
  const auto refused = worker.expect<transport::Refused>();
  CHECK(refused.text.find("does not match its CRC32C, twice") != std::string::npos);
}

TEST_CASE("a mapped gradient counts when its worker died after the commit, and only then") {
  bool committed = false;
  SUBCASE("committed") { committed = true; }
  SUBCASE("not committed") {}
  CAPTURE(committed);
  EngineConfig config = config_for("");
  config.workers[WorkerId(1)] = {Incarnation(5), Clock(0), {}};
  Server server(config, "shm");
  FakeWorker witness("shm", 1);
  const std::size_t mapped_before = mapped_memories();
  auto worker = std::make_unique<FakeWorker>("shm");
  EngineView view = view_for(*worker, 1);
  view.workers.push_back(
      {{WorkerId(1), Incarnation(5), WorkerPhase::kLive, Clock(0)}, witness.address()});
  server.engine->view(view);
  for (std::uint32_t p = 0; p < kPartitions; ++p)
    std::ranges::fill(worker->values<float>(p), 10.0f);
  worker->push(server.address, 0, true);
  worker->end(server.address, 0, transport::Ending::kInitial);

  view.epoch = 2;
  view.order = EngineView::Order::kHold;
  view.checkpoint = "000001";
  server.engine->view(view);
  await(*server.engine, [](const EngineReport& r) { return r.held == "000001"; });
  worker->push(server.address, 0, false);
  if (committed) worker->end(server.address, 0, transport::Ending::kCommit);
  // No worker does this; here it shows that nobody copied.
  for (std::uint32_t p = 0; p < kPartitions; ++p)
    std::ranges::fill(worker->values<Half>(p), to_half(4.0f));
  worker.reset();

  view.epoch = 3;
  view.order = EngineView::Order::kNone;
  view.workers[0].news.phase = WorkerPhase::kDead;
  view.workers[0].news.final_clock = Clock(committed ? 1 : 0);
  server.engine->view(view);
  await(*server.engine,
        [&](const EngineReport& r) { return r.epoch == 3 && r.updates == (committed ? 1u : 0u); });
  witness.pull(server.address, 0, 1);
  for (std::uint32_t p = 0; p < kPartitions; ++p)
    CHECK(all(witness.values<float>(p), committed ? 8.0f : 10.0f));
  // Nor is anything of it left. The witness's memory is mapped twice now.
  CHECK(mapped_memories() == mapped_before + 1);
}

TEST_CASE("nothing of an abandoned step stays mapped") {
  Server server(config_for(""), "shm");
  FakeWorker worker("shm");
  const std::size_t mapped_before = mapped_memories();
  server.engine->view(view_for(worker, 1));
  worker.push(server.address, 0, true);
  worker.end(server.address, 0, transport::Ending::kInitial);
  worker.push(server.address, 0, false);
  CHECK(mapped_memories() == mapped_before + 1);
  worker.end(server.address, 0, transport::Ending::kAbandon);
  worker.renew_memory();
  await(*server.engine, [&](const EngineReport&) { return mapped_memories() == mapped_before; });
}

TEST_CASE("a gradient with block scales is applied as it was, and refused when a scale is none") {
  FakeWorker worker;
  EngineConfig config = config_for("");
  config.settings.gradient_codec.value = "fp8_e4m3";
  Server server(std::move(config));
  server.engine->view(view_for(worker, 1));
  for (std::uint32_t p = 0; p < kPartitions; ++p) std::ranges::fill(worker.values<float>(p), 10.0f);
  worker.push(server.address, 0, true);
  worker.end(server.address, 0, transport::Ending::kInitial);
  const GradientCodec codec{Codec::kFp8E4m3};
  const std::vector<float> gradient(kElements, 3.0f);
  const auto push = [&](std::uint64_t clock, std::byte last) {
    transport::Push push{.clock = Clock(clock), .memory = worker.memory()};
    for (std::uint32_t p = 0; p < kPartitions; ++p) {
      std::byte* const payload = worker.values<std::byte>(p).data();
      REQUIRE(kernels::encode(codec, gradient, 1.0f, payload, kElements, 0));
      if (last != std::byte{0}) payload[codec.bytes(kElements) - 1] = last;
      push.entries.push_back({.partition = PartitionId(p),
                              .scale = 2.0f,
                              .offset = worker.remote(p),
                              .bytes = codec.bytes(kElements),
                              .codec = codec.codec});
    }
    worker.send(server.address, push);
  };
  push(0, std::byte{0});
  std::size_t taken = 0;
  while (taken < kPartitions) taken += worker.expect<transport::PushTaken>().partitions.size();
  worker.end(server.address, 0, transport::Ending::kCommit);
  worker.pull(server.address, 1, 1);
  CHECK(all(worker.values<float>(0), 8.5f));
  CHECK(all(worker.values<float>(1), 8.5f));
  push(1, std::byte{0xFF});
  const auto refused = worker.expect<transport::Refused>();
  CHECK(refused.text.find("the scale of elements 99968 and on is not a number") !=
        std::string::npos);
}

TEST_CASE("a pull moves the partitions alone that changed since") {
  FakeWorker worker;
  Server server(config_for(""));
  server.engine->view(view_for(worker, 1));
  for (std::uint32_t p = 0; p < kPartitions; ++p) std::ranges::fill(worker.values<float>(p), 10.0f);
  worker.push(server.address, 0, true);
  worker.end(server.address, 0, transport::Ending::kInitial);
  const Version first = worker.pull(server.address, 0, 1).entries.at(0).version;
  for (std::uint32_t p = 0; p < kPartitions; ++p) std::ranges::fill(worker.values<float>(p), 7.0f);
  const transport::Pulled same = worker.pull(server.address, 0, 2, first);
  CHECK(same.entries.size() == kPartitions);
  CHECK(same.entries.at(0).version == first);
  CHECK(all(worker.values<float>(0), 7.0f));
  CHECK(all(worker.values<float>(1), 7.0f));
  worker.pull(server.address, 0, 3);
  CHECK(all(worker.values<float>(0), 10.0f));
}

TEST_CASE("a worker that asks for weights while some are on their way to it is given up") {
  FakeWorker worker;
  Server server(config_for(""));
  server.engine->view(view_for(worker, 1));
  worker.push(server.address, 0, true);
  worker.end(server.address, 0, transport::Ending::kInitial);
  std::vector<transport::Body> pulls;
  for (std::uint32_t request = 1; request <= 20; ++request)
    pulls.emplace_back(
        transport::Pull{.request = request,
                        .total = kPartitions,
                        .memory = worker.memory(),
                        .entries = {{PartitionId(0), Version(0), worker.remote(0)},
                                    {PartitionId(1), Version(0), worker.remote(1)}}});
  worker.send(server.address, pulls);
  CHECK(worker.expect<transport::Refused>().text.find("while some are on their way") !=
        std::string::npos);
  CHECK(worker.expect<transport::Pulled>().request == 1);
  CHECK(await(*server.engine, [](const EngineReport&) { return true; }).bytes_written ==
        kPartitions * kElements * sizeof(float));
}

TEST_CASE("C5 a joiner of another fabric is told of, and the server trains on") {
  FakeWorker worker;
  const FakeWorker joiner("shm", 1);
  EngineConfig config = config_for("");
  config.places = 2;
  Server server(config);
  EngineView view = view_for(worker, 1);
  view.workers.push_back(
      {{WorkerId(1), Incarnation(9), WorkerPhase::kJoining, Clock(0)}, joiner.address()});
  server.engine->view(view);
  const auto joining = [&](std::int64_t epoch) {
    return await(*server.engine, [&](const EngineReport& r) { return r.epoch == epoch; });
  };
  EngineReport report = joining(1);
  REQUIRE(report.joining.contains(WorkerId(1)));
  CHECK_FALSE(report.joining.at(WorkerId(1)));
  CHECK(report.fault.empty());
  view.epoch = 2;
  view.workers[1].address = worker.address();
  server.engine->view(view);
  report = joining(2);
  REQUIRE(report.joining.contains(WorkerId(1)));
  CHECK(report.joining.at(WorkerId(1)) == Clock(0));
}

TEST_CASE("a worker of another job is refused, and an engine ends in the middle of things") {
  FakeWorker worker;
  Server server(config_for(""));
  server.engine->view(view_for(worker, 1));
  transport::Push bad{.clock = Clock(0), .memory = worker.memory()};
  bad.entries = {{.partition = PartitionId(55), .offset = worker.remote(0), .bytes = 4}};
  worker.send(server.address, bad);
  const auto refused = worker.expect<transport::Refused>();
  CHECK(refused.text.find("partition 55") != std::string::npos);
  server.engine.reset();
}

}  // namespace leeway::server
