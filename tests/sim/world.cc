#include "tests/sim/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

namespace leeway::sim {

using server::WorkerPhase;

namespace {

constexpr std::uint64_t kJob = 77;
constexpr std::uint64_t kElements = 8;
constexpr std::uint64_t kNetwork = 40;    // longest delay of a message
constexpr std::uint64_t kLateCopy = 200;  // a repeated message may be long on its way
constexpr std::uint64_t kCompute = 30;    // longest time of a transfer or an update
constexpr std::uint64_t kReport = 25;     // a server reports about so often
constexpr std::uint64_t kDetection = 200;
constexpr std::uint32_t kSamples[] = {64, 64, 64, 48, 5};
constexpr milliseconds kNormPatience{3000};  // longer than a death takes to be settled
constexpr std::size_t kMostWorkers = 8;
constexpr std::uint64_t kMostEvents = 400000;

}  // namespace

World::World(const WorldOptions& options) : events_(options.seed), bugs_(options.bugs) {
  per_clock_ = events_.chance(0.5);
  const std::uint64_t bounds[] = {0, 0, 1, 2, 4, Bound::kInfinite};
  staleness_ = Bound{bounds[events_.below(6)]};
  if (!staleness_.infinite() && events_.chance(0.3)) {
    staleness_.low = staleness_.value;
    staleness_.value += events_.below(5);
  }
  steps_ = 3 + events_.below(8);
  server_count_ = 1 + events_.below(3);
  workers_.reserve(kMostWorkers);
  workers_.resize(1 + events_.below(5));
  const auto world_size = static_cast<std::uint32_t>(workers_.size());
  if (per_clock_ && events_.chance(0.6)) {
    quorum_ = 1 + static_cast<std::uint32_t>(events_.below(world_size));
    grace_ = {milliseconds(events_.chance(0.5) ? 0 : events_.below(100)), events_.chance(0.3)};
  } else if (per_clock_) {
    norm_parts_ = events_.below(3);
  }
  for (std::uint32_t w = 0; w < world_size; ++w) {
    workers_[w].id = WorkerId(w);
    if (events_.chance(0.25)) workers_[w].slowness = 10;
    news_.workers.push_back({WorkerId(w), incarnation(WorkerId(w)), WorkerPhase::kLive, Clock(0)});
  }
  news_.initializer = WorkerId(0);
  const auto more = static_cast<std::uint32_t>(events_.chance(0.3) ? 1 + events_.below(2) : 0);
  for (std::uint32_t i = 0; i < more; ++i) events_.soon(400 * steps_, [this] { begin_to_grow(); });
  least_slabs_ = per_clock_ || server_count_ > 1 ? world_size + more : 1;
  spare_slabs_ = least_slabs_ > 1 && !options.one_slab;
  slabs_ = least_slabs_ + static_cast<std::uint32_t>(events_.below(3));
  if (options.one_slab) slabs_ = least_slabs_ = 1;
  servers_.resize(server_count_);
  server_views_.resize(server_count_);
  for (std::size_t s = 0; s < server_count_; ++s) servers_[s].core = make_core(s, false);
  // At most all but one die, at a random moment.
  for (std::size_t w = 0; w + 1 < workers_.size(); ++w)
    if (events_.chance(0.25)) {
      const std::size_t victim = events_.below(workers_.size());
      if (std::ranges::count(workers_, true, &Worker::crash_at_random) + 1 <
          static_cast<std::ptrdiff_t>(workers_.size()))
        workers_[victim].crash_at_random = true;
    }
}

std::unique_ptr<server::Consistency> World::make_core(std::size_t s, bool restored) {
  server::CoreConfig config{.job = kJob,
                            .per_clock = per_clock_,
                            .quorum = quorum_,
                            .grace = grace_,
                            .staleness = staleness_,
                            .slabs = slabs_,
                            .minimal_slabs = least_slabs_,
                            .only_server = server_count_ == 1,
                            .initialized = restored,
                            .norms = norm_config(s),
                            .bugs = bugs_};
  for (PartitionId p : shard(s)) config.partitions.push_back({p, kElements});
  for (const Worker& worker : workers_)
    if (worker.alive) config.workers[worker.id] = {incarnation(worker.id), Clock(worker.clock), {}};
  return std::make_unique<server::Consistency>(std::move(config));
}

Incarnation World::incarnation(WorkerId worker) const {
  return incarnation(worker, workers_[worker.value()].life);
}

Incarnation World::incarnation(WorkerId worker, std::uint64_t life) const {
  return Incarnation(10'000 * (run_ + 1) + 100 * life + worker.value());
}

Incarnation World::incarnation_of_server(std::size_t server) const {
  return Incarnation(100 * (run_ + 1) + 50 + server);
}

void World::broken(const std::string& what) const { throw SimulationError(what); }

transport::Sender World::sender(const Worker& worker) const {
  return {kJob, incarnation(worker.id), worker.id.value()};
}

std::vector<PartitionId> World::shard(std::size_t server) const {
  const auto first = static_cast<std::uint32_t>(server * 2);
  return {PartitionId(first), PartitionId(first + 1)};
}

void World::run() {
  publish();
  for (Worker& worker : workers_) {
    for (std::size_t s = 0; s < server_count_; ++s) worker.confirmed[s] = 0;
    start_pull(worker);
    if (worker.crash_at_random) later(worker, 600 * steps_, [this, &worker] { crash(worker); });
  }
  for (std::size_t s = 0; s < server_count_; ++s) {
    push_to(workers_[0], s, true);
    report(s);
  }
  events_.soon(400, [this] { maybe_checkpoint(); });
  if (events_.chance(0.2)) events_.soon(1000 * steps_, [this] { restart(); });
  for (std::uint64_t n = 0; !everybody_done(); ++n) {
    // When all the others are through, nobody joins any more.
    if (everybody_left() && somebody_joins()) {
      joiners_.clear();
      publish();
    }
    if (n > kMostEvents || !events_.run_one()) {
      std::string who;
      for (const Worker& worker : workers_)
        who += fmt::format(" worker.{}{} at step {},", worker.id.value(),
                           worker.alive ? (worker.finished ? " finished" : "") : " dead",
                           worker.clock);
      for (const Server& server : servers_)
        for (const std::string& line : server.core->waiting(events_.now())) who += " " + line + ";";
      broken("no progress:" + who);
    }
    for (Server& server : servers_) check_progress(server);
  }
  check_end();
}

// --- the network ---------------------------------------------------------------------------------

void World::to_server(const Worker& from, std::size_t server, transport::Body body) {
  const auto* values = std::get_if<transport::Push>(&body);
  const bool initial = values != nullptr && values->entries[0].initial;
  const int copies = !initial && events_.chance(0.1) ? 2 : 1;
  for (int i = 0; i < copies; ++i)
    events_.soon(i == 0 ? kNetwork : kLateCopy, [this, server, who = sender(from), body] {
      server::Consistency& core = *servers_[server].core;
      if (const auto* push = std::get_if<transport::Push>(&body))
        carry_out(server, core.push(who, *push, events_.now()));
      else if (const auto* commit = std::get_if<transport::Commit>(&body))
        carry_out(server, core.end_step(who, *commit, events_.now()));
      else
        carry_out(server, core.pull(who, std::get<transport::Pull>(body), events_.now()));
    });
}

void World::to_worker(std::size_t server, WorkerId worker, std::function<void(Worker&)> event) {
  const Incarnation whom = servers_[server].core->workers().at(worker).incarnation;
  events_.soon(kNetwork, [this, worker, whom, event = std::move(event)] {
    Worker& to = workers_[worker.value()];
    if (to.alive && !to.finished && incarnation(worker) == whom) event(to);
  });
}

// Unless it has died by then.
void World::later(Worker& worker, std::uint64_t span, std::function<void()> event) {
  events_.soon(span, [&worker, life = worker.life, event = std::move(event)] {
    if (worker.alive && worker.life == life) event();
  });
}

// --- workers
// ---------------------------------------------------------------------------------------

void World::start_pull(Worker& worker) {
  ++worker.request;
  worker.answered.clear();
  const auto bound = staleness_.infinite() ? transport::kUnboundedStaleness
                                           : static_cast<std::uint32_t>(staleness_.value);
  for (std::size_t s = 0; s < server_count_; ++s) {
    transport::Pull pull{.clock = Clock(worker.clock),
                         .request = worker.request,
                         .staleness = bound,
                         .total = 2,
                         .memory = std::make_shared<transport::RemoteMemory>()};
    for (PartitionId p : shard(s)) {  // in two messages
      pull.entries = {{p, Version(0), 64}};
      to_server(worker, s, pull);
    }
  }
}

void World::start_push(Worker& worker) {
  // Acknowledgements of initial values and of step 0 look alike.
  if (!worker.weights || !worker.initial_pending.empty()) return;
  worker.weights = false;
  worker.pushing = true;
  worker.abandon = events_.chance(0.1);
  // With one server the COMMIT need not wait for the payloads to be taken.
  worker.early = server_count_ == 1 && !worker.abandon && events_.chance(0.5);
  worker.untaken.clear();
  for (std::size_t s = 0; s < server_count_; ++s)
    for (PartitionId p : shard(s)) worker.untaken.insert(p.value());
  // A worker that abandons may have pushed a part only.
  if (worker.abandon && events_.chance(0.5)) worker.untaken.erase(worker.untaken.begin());
  for (std::size_t s = 0; s < server_count_; ++s)
    if (worker.confirmed[s] == worker.clock) push_to(worker, s, false);
  maybe_commit(worker);
}

void World::push_to(Worker& worker, std::size_t server, bool initial) {
  if (initial) worker.initial_pending.insert(server);
  for (PartitionId p : shard(server)) {
    if (!initial && !worker.untaken.contains(p.value())) continue;
    transport::Push push{.clock = Clock(worker.clock),
                         .memory = std::make_shared<transport::RemoteMemory>()};
    push.entries = {{.partition = p,
                     .scale = 2,
                     .offset = 4096,
                     .bytes = kElements * (initial ? 4 : 2),
                     .codec = initial ? transport::Codec::kF32 : transport::Codec::kF16,
                     .initial = initial}};
    to_server(worker, server, push);
  }
}

void World::taken(Worker& worker, PartitionId partition, bool initial) {
  if (initial) {
    if (!worker.initial_taken.insert(partition.value()).second) return;
    const std::size_t server = partition.value() / 2;
    const auto partitions = shard(server);
    if (std::ranges::all_of(
            partitions, [&](PartitionId p) { return worker.initial_taken.contains(p.value()); }))
      to_server(worker, server, transport::Commit{.ending = transport::Ending::kInitial});
    return;
  }
  worker.untaken.erase(partition.value());
  maybe_commit(worker);
}

void World::maybe_commit(Worker& worker) {
  if (!worker.pushing || (!worker.untaken.empty() && !worker.early)) return;
  for (const auto& [server, steps] : worker.confirmed)
    if (steps < worker.clock) return;
  worker.pushing = false;
  const StepId step{worker.id, Clock(worker.clock)};
  (worker.abandon ? abandoned_ : commit_sent_).insert(step);
  const transport::Commit commit{
      .clock = Clock(worker.clock),
      .ending = worker.abandon ? transport::Ending::kAbandon : transport::Ending::kCommit,
      .samples = kSamples[events_.below(std::size(kSamples))]};
  samples_[step] = commit.samples;
  // A worker may die between two of these.
  const std::size_t reached =
      worker.crash_at_random && events_.chance(0.1) ? events_.below(server_count_) : server_count_;
  for (std::size_t s = 0; s < reached; ++s) to_server(worker, s, commit);
  if (reached < server_count_) return crash(worker);
  ++worker.clock;
  if (worker.clock < steps_) start_pull(worker);
}

void World::crash(Worker& worker) {
  if (!worker.alive || worker.finished) return;
  worker.alive = false;
  ++happened_.deaths;
  events_.soon(kDetection, [this, &worker] {
    news_.workers[worker.id.value()].phase = WorkerPhase::kResolving;
    publish();
    resolving_since_[worker.id] = news_.version;
    resolve_reports_.erase(worker.id);
  });
}

// --- servers
// ---------------------------------------------------------------------------------------

void World::carry_out(std::size_t s, const server::Effects& effects) {
  for (const server::Effect& effect : effects) {
    if (const auto* read = std::get_if<server::ReadPayload>(&effect)) {
      events_.soon(kCompute, [this, s, read = *read] {
        Server& to = servers_[s];
        const Worker& from = workers_[read.step.worker.value()];
        const auto known = to.core->workers().find(read.step.worker);
        const bool ok = from.alive && known->second.incarnation == incarnation(from.id);
        if (ok && !read.initial && from.pushing && Clock(from.clock) > read.step.clock)
          broken("a gradient is read after its worker went on to the next step");
        if (ok && !read.initial && ++to.payloads[read.step] == 2) to.read_whole.insert(read.step);
        // The fabric may keep the slab of a failed read; a server with a single one ends then.
        const bool kept = !ok && !read.initial && spare_slabs_ && events_.chance(0.5);
        carry_out(s, to.core->read_done(read, ok, !kept, "the worker is gone", events_.now()));
      });
    } else if (const auto* taken_now = std::get_if<server::SendTaken>(&effect)) {
      to_worker(s, taken_now->step.worker, [this, t = *taken_now](Worker& worker) {
        if (t.initial && !worker.initial_pending.empty())
          taken(worker, t.partition, true);
        else if (!t.initial && worker.pushing && t.step.clock == Clock(worker.clock))
          taken(worker, t.partition, false);
      });
    } else if (const auto* done = std::get_if<server::SendCommitted>(&effect)) {
      if (done->ending == transport::Ending::kCommit) servers_[s].ended.insert(done->step);
      to_worker(s, done->step.worker, [this, s, c = *done](Worker& worker) {
        if (c.ending == transport::Ending::kInitial) {
          worker.initial_pending.erase(s);
          return start_push(worker);
        }
        std::uint64_t& confirmed = worker.confirmed[s];
        if (c.step.clock.value() + 1 <= confirmed) return;
        confirmed = c.step.clock.value() + 1;
        if (worker.pushing && worker.clock == confirmed) push_to(worker, s, false);
        maybe_commit(worker);
        const bool all = std::ranges::all_of(
            worker.confirmed, [&](const auto& entry) { return entry.second >= steps_; });
        if (!all) return;
        finish(worker);
      });
    } else if (const auto* update = std::get_if<server::Apply>(&effect)) {
      apply(s, *update);
    } else if (const auto* norms = std::get_if<server::SendNorms>(&effect)) {
      send_norms(s, *norms);
    } else if (const auto* step = std::get_if<server::StepTensor>(&effect)) {
      step_tensor(s, *step);
    } else if (const auto* ignored = std::get_if<server::Ignore>(&effect)) {
      broken(fmt::format("server.{} ignored {}", s, ignored->why));
    } else if (const auto* late = std::get_if<server::FoldLate>(&effect)) {
      fold(s, *late);
    } else if (const auto* wake = std::get_if<server::WakeAt>(&effect)) {
      events_.at(wake->at, [this, s] { carry_out(s, servers_[s].core->tick(events_.now())); });
    } else if (std::holds_alternative<server::PublishInitial>(effect)) {
      events_.soon(kCompute,
                   [this, s] { carry_out(s, servers_[s].core->initial_published(events_.now())); });
    } else if (const auto* pull = std::get_if<server::AnswerPull>(&effect)) {
      answer(s, *pull);
    } else if (const auto* refused = std::get_if<server::Refuse>(&effect)) {
      if (const Worker& worker = workers_[refused->sender.id];
          worker.alive && refused->sender.incarnation == incarnation(worker.id))
        broken(fmt::format("server.{} refused an honest worker.{}: {}", s, refused->sender.id,
                           refused->text));
    } else if (const auto* cut = std::get_if<server::TakeSnapshot>(&effect)) {
      snapshot(s, *cut);
    } else if (const auto* fault = std::get_if<server::Fault>(&effect)) {
      broken(fmt::format("server.{} gave up: {}", s, fault->reason));
    }
  }
}

void World::apply(std::size_t s, const server::Apply& update) {
  Server& server = servers_[s];
  if (!server.applying.empty() || !server.folding.empty()) broken("two updates at once");
  for (const server::Sum& sum : update.sums) add(s, sum, update.clock);
  server.updates += update.sums.size();
  if (per_clock_ && quorum_ == 0)
    for (const auto& [id, worker] : server.core->workers())
      if (worker.live() && worker.ended <= update.clock)
        broken(fmt::format("clock {} is applied without worker.{}, which belongs to it",
                           update.clock.value(), id.value()));
  if (cutting(server)) server.cut_clocks = update.clock.next().value();
  if (per_clock_ && !cutting(server))
    for (const StepId& step : server.ended)
      if (step.clock <= update.clock && !server.visible.contains(step) &&
          !server.applying.contains(step))
        broken(fmt::format("clock {} is applied without step {} of worker.{}, which was there",
                           update.clock.value(), step.clock.value(), step.worker.value()));
  server.clock = update.clock;
  server.unstepped = norm_parts_;
  if (norm_parts_ == 0) return events_.soon(kCompute, [this, s] { applied(s); });
  for (server::LocalPartition part = 0; part < norm_parts_; ++part)
    events_.soon(kCompute, [this, s, part] {
      Server& now = servers_[s];
      const NormSums sums = norms_of(s, part, now.clock, now.applying);
      carry_out(s, now.core->part_summed(part, sums, events_.now()));
    });
}

void World::applied(std::size_t s) {
  Server& now = servers_[s];
  now.visible.merge(now.applying);
  now.applying.clear();
  for (const auto& send : std::exchange(now.answers, {})) send();
  carry_out(s, now.core->apply_done(events_.now()));
}

// --- norms: one tensor, of which every server has so many partitions -----------------------------

server::NormConfig World::norm_config(std::size_t s) const {
  server::NormConfig config{.patience = kNormPatience};
  if (norm_parts_ == 0) return config;
  server::NormConfig::Tensor tensor{.id = TensorId(0), .name = "table"};
  for (server::LocalPartition part = 0; part < norm_parts_; ++part) tensor.parts.push_back(part);
  for (std::size_t other = 0; other < server_count_; ++other) {
    if (other == s) continue;
    const ServerId id(static_cast<std::uint32_t>(other));
    tensor.others.push_back(id);
    config.servers[id] = incarnation_of_server(other);
  }
  config.tensors.push_back(std::move(tensor));
  return config;
}

// A number that tells which update of which partition it is of.
NormSums World::norms_of(std::size_t server, server::LocalPartition part, Clock clock,
                         const std::set<StepId>& steps) const {
  std::uint64_t mark = server * 2 + part;
  const auto mix = [&](std::uint64_t value) { mark = (mark ^ value) * 0x9E3779B97F4A7C15 >> 7; };
  mix(clock.value());
  for (const StepId& step : steps) mix(step.worker.value() << 20 | step.clock.value());
  NormSums sums;
  sums.weights.add(1 + static_cast<double>(mark >> 20));
  return sums;
}

void World::send_norms(std::size_t s, const server::SendNorms& message) {
  const transport::Sender from{kJob, incarnation_of_server(s), static_cast<std::uint32_t>(s)};
  const int copies = events_.chance(0.1) ? 2 : 1;
  for (int i = 0; i < copies; ++i)
    events_.soon(i == 0 ? kNetwork : kLateCopy, [this, from, message] {
      const std::size_t to = message.to.value();
      carry_out(to, servers_[to].core->norms(from, message.norms, events_.now()));
    });
}

void World::step_tensor(std::size_t s, const server::StepTensor& step) {
  Server& server = servers_[s];
  if (step.parts.size() != norm_parts_ || server.unstepped != norm_parts_)
    broken("a tensor steps twice, or in parts");
  NormSums expected;
  for (std::size_t other = 0; other < server_count_; ++other)
    for (server::LocalPartition part = 0; part < norm_parts_; ++part)
      expected.add(norms_of(other, part, server.clock, server.applying));
  if (step.sums != expected)
    broken(fmt::format("server.{} updates clock {} by norms of something else", s,
                       server.clock.value()));
  happened_.norms += server_count_ > 1 ? 1 : 0;
  server.unstepped = 0;
  events_.soon(kCompute, [this, s] { applied(s); });
}

bool World::cutting(const Server& server) const {
  return server.stage == 2 && !server.snapshots.contains(news_.checkpoint);
}

std::uint32_t World::samples_of(StepId step) const {
  const auto known = samples_.find(step);
  return known == samples_.end() ? 0 : known->second;
}

void World::check_weights(const Server& server, const server::Sum& sum) const {
  double total = 0;
  for (const StepId& step : server.folded) total += samples_of(step);
  for (const auto& contribution : sum.contributions)
    total += per_clock_ ? samples_of(contribution.step) : 1;
  const auto near = [](double x, double y) { return std::abs(x - y) <= 1e-6 * y; };
  // The late sum has every step times its samples.
  if (!server.folded.empty() && !near(double{sum.late} * sum.weight, 1 / total))
    broken("the late sum has a wrong weight");
  for (const auto& contribution : sum.contributions)
    if (!near(double{contribution.factor} * sum.weight,
              (per_clock_ ? samples_of(contribution.step) : 1) / total))
      broken(fmt::format("step {} of worker.{} has weight {} of {}, for {} samples of {}",
                         contribution.step.clock.value(), contribution.step.worker.value(),
                         contribution.factor, 1 / sum.weight, samples_of(contribution.step),
                         total));
  if (quorum_ == 0 && per_clock_ &&
      std::ranges::all_of(sum.contributions,
                          [&](const auto& one) {
                            return samples_of(one.step) == samples_of(sum.contributions[0].step);
                          }) &&
      sum.weight != 1.0f / static_cast<float>(sum.contributions.size()))
    broken("equal samples are not averaged as they were without samples");
}

void World::add(std::size_t s, const server::Sum& sum, Clock clock) {
  Server& server = servers_[s];
  if ((sum.late != 0) != !server.folded.empty()) broken("the late sum is forgotten or made up");
  check_weights(server, sum);
  server.applying.merge(server.folded);
  server.folded.clear();
  std::optional<StepId> before;
  for (const server::Contribution& contribution : sum.contributions) {
    const StepId step = contribution.step;
    if (server.visible.contains(step) || !server.applying.insert(step).second)
      broken(fmt::format("step {} of worker.{} is applied twice", step.clock.value(),
                         step.worker.value()));
    if (!server.read_whole.contains(step) || abandoned_.contains(step) ||
        !commit_sent_.contains(step))
      broken(fmt::format("step {} of worker.{} is applied and was not committed",
                         step.clock.value(), step.worker.value()));
    if (before && *before >= step) broken("a sum is not in worker order");
    if (per_clock_ && (quorum_ == 0 ? step.clock != clock : step.clock > clock))
      broken("a clock holds a step of another one");
    before = step;
    ++happened_.steps;
    happened_.late += per_clock_ && step.clock < clock ? 1 : 0;
  }
}

void World::fold(std::size_t s, const server::FoldLate& fold) {
  Server& server = servers_[s];
  if (!server.applying.empty() || !server.folding.empty()) broken("two updates at once");
  if (fold.first != server.folded.empty()) broken("the late sum is emptied at a wrong time");
  for (const server::Contribution& contribution : fold.contributions) {
    const StepId step = contribution.step;
    if (server.visible.contains(step) || server.folded.contains(step) ||
        !server.folding.insert(step).second)
      broken(fmt::format("step {} of worker.{} is folded twice", step.clock.value(),
                         step.worker.value()));
    if (!server.read_whole.contains(step) || !commit_sent_.contains(step))
      broken("a step is folded and was not committed");
    if (contribution.factor != static_cast<float>(samples_of(step)))
      broken("a late step has a wrong weight");
    ++happened_.steps;
    ++happened_.late;
    ++happened_.folded;
  }
  events_.soon(kCompute, [this, s] {
    Server& now = servers_[s];
    now.folded.merge(now.folding);
    now.folding.clear();
    carry_out(s, now.core->apply_done(events_.now()));
  });
}

bool World::holds(const Server& server, WorkerId worker, std::uint64_t clock) const {
  const StepId step{worker, Clock(clock)};
  return server.visible.contains(step) || server.applying.contains(step) ||
         abandoned_.contains(step) || never_.contains(step);
}

void World::answer(std::size_t s, const server::AnswerPull& pull) {
  Server& server = servers_[s];
  const std::uint64_t clock = pull.clock.value();
  const std::uint64_t needs = clock > staleness_.value ? clock - staleness_.value : 0;
  std::uint64_t slowest = UINT64_MAX;
  std::size_t live = 0, with_clock = 0;
  for (const auto& [id, worker] : server.core->workers()) {
    with_clock += std::max(worker.ended, server.most_ended[id]).value() >= needs ? 1 : 0;
    if (!worker.live()) continue;
    // A quorum does not wait for somebody who was not there.
    live += workers_[id.value()].life > 0 && worker.ended == worker.start ? 0 : 1;
    std::uint64_t has = 0;
    while (holds(server, id, has)) ++has;
    const std::uint64_t wanted = id == pull.worker && !per_clock_ ? clock : needs;
    if (has < wanted && quorum_ == 0)
      broken(
          fmt::format("server.{} answered worker.{} for step {} (bound {}) with {} steps of "
                      "worker.{}",
                      s, pull.worker.value(), clock, staleness_.value, has, id.value()));
    slowest = std::min(slowest, worker.upcoming().value());
    if (worker.upcoming().value() > has)
      broken("a server counts steps that its weights do not hold");
  }
  if (quorum_ == 0 && pull.slowest.value() != slowest)
    broken("a pull was told a wrong smallest clock");
  const std::uint64_t low = staleness_.low.value_or(staleness_.value);
  if (pull.bound < low || pull.bound > staleness_.value)
    broken(fmt::format("a pull was answered by the bound {}", pull.bound));
  if (clock > pull.slowest.value() && clock - pull.slowest.value() > pull.bound)
    broken("a pull is staler than the bound that it is told");
  if (staleness_.low && pull.bound > low) ++happened_.widened;
  if (quorum_ != 0 && pull.slowest.value() < needs)
    broken(fmt::format("server.{} answered worker.{} for step {} (bound {}) with {} clocks", s,
                       pull.worker.value(), clock, staleness_.value, pull.slowest.value()));
  if (quorum_ != 0 && needs > std::max(first_clock_, server.cut_clocks) &&
      with_clock < std::min<std::size_t>(quorum_, live))
    broken(fmt::format(
        "server.{} answered worker.{} for step {} (bound {}): {} workers have "
        "ended step {}, the quorum is {}",
        s, pull.worker.value(), clock, staleness_.value, with_clock, needs - 1, quorum_));
  // The weights are written as the update leaves them, and the answer comes after the last.
  const auto send = [this, s, to = pull.worker, request = pull.request, updates = server.updates] {
    pulled(s, to, request, updates);
  };
  if (server.applying.empty())
    send();
  else
    server.answers.emplace_back(send);
}

void World::pulled(std::size_t s, WorkerId to, std::uint32_t request, std::uint64_t updates) {
  to_worker(s, to, [this, s, request, updates](Worker& worker) {
    if (request != worker.request || worker.pushing) return;
    worker.answered[s] = updates;
    if (worker.answered.size() < server_count_) return;
    if (per_clock_ && quorum_ == 0 && staleness_ == Bound{0})
      for (const auto& [server, theirs] : worker.answered)
        if (theirs != updates) broken("the weights of a step are of more than one cut");
    worker.answered.clear();
    worker.initial_done = true;
    later(worker, kCompute * worker.slowness, [this, &worker] {
      worker.weights = true;
      if (!worker.pushing) start_push(worker);
    });
  });
}

void World::snapshot(std::size_t s, const server::TakeSnapshot& taken_now) {
  Server& server = servers_[s];
  if (!server.applying.empty() || !server.folding.empty())
    broken("a snapshot in the middle of an update");
  if (!server.folded.empty()) broken("a snapshot without what is in the late sum");
  Snapshot& snapshot = server.snapshots[taken_now.id];
  snapshot.steps = server.visible;
  for (const auto& [id, worker] : taken_now.workers) snapshot.clocks[id] = worker.clock.value();
  for (const Server& other : servers_) {
    const auto same = other.snapshots.find(taken_now.id);
    if (same != other.snapshots.end() && same->second.steps != server.visible)
      broken(fmt::format("two servers cut checkpoint {} at different steps", taken_now.id));
  }
}

void World::check_progress(Server& server) const {
  for (const auto& [id, worker] : server.core->workers())
    server.most_ended[id] = std::max(server.most_ended[id], worker.ended);
  for (const auto& [id, clock] : server.core->applied()) {
    Clock& seen = server.progress[id];
    if (clock < seen && server.core->workers().at(id).live())
      broken(fmt::format("progress of worker.{} went back", id.value()));
    seen = clock;
  }
}

// --- the scheduler
// -----------------------------------------------------------------------------------

void World::publish() {
  ++news_.version;
  // The initial values come from the lowest live worker, until it dies.
  const auto live = [](const server::WorkerNews& worker) {
    return worker.phase == WorkerPhase::kLive;
  };
  if (!live(news_.workers[news_.initializer->value()])) {
    const auto next = std::ranges::find_if(news_.workers, live);
    if (next != news_.workers.end()) {
      news_.initializer = next->id;
      push_initial(workers_[next->id.value()]);
    }
  }
  std::vector<server::WorkerNews> workers = news_.workers;
  for (auto& [id, joiner] : joiners_) {
    if (joiner.taken_in != 0) continue;
    if (joiner.told == 0 && news_.stage == 0) joiner.told = news_.version;
    if (joiner.told == 0) continue;
    const std::uint64_t life = workers_[id.value()].life + 1;
    workers.push_back({id, incarnation(id, life), WorkerPhase::kJoining});
  }
  for (std::size_t s = 0; s < server_count_; ++s)
    events_.soon(kNetwork, [this, s, news = news_, workers] {
      Server& server = servers_[s];
      if (news.version <= server.view) return;
      server.view = news.version;
      carry_out(s, server.core->view(workers, news.initializer, events_.now()));
      server.stage = news.stage;
      if (news.stage == 0) carry_out(s, server.core->release(events_.now()));
      if (news.stage == 1) carry_out(s, server.core->hold(news.checkpoint, events_.now()));
      if (news.stage == 2) carry_out(s, server.core->cut(news.checkpoint, news.cut, events_.now()));
    });
}

void World::push_initial(Worker& worker) {
  if (!worker.alive || worker.initial_done || worker.clock != 0) return;
  for (std::size_t s = 0; s < server_count_; ++s) push_to(worker, s, true);
}

void World::report(std::size_t s) {
  const server::Consistency& core = *servers_[s].core;
  const Report report{.view = servers_[s].view,
                      .resolving = core.resolving(),
                      .applied = core.applied(),
                      .joining = core.joining(),
                      .samples = core.last_samples(),
                      .held = core.held()};
  events_.soon(kNetwork, [this, s, report] { on_report(s, report); });
  events_.soon(kReport, [this, s] { this->report(s); });
}

void World::on_report(std::size_t s, const Report& report) {
  server_views_[s] = std::max(server_views_[s], report.view);
  for (const auto& [id, clock] : report.resolving) {
    server::WorkerNews& news = news_.workers[id.value()];
    if (news.phase != WorkerPhase::kResolving || report.view < resolving_since_[id]) continue;
    auto& reports = resolve_reports_[id];
    reports[s] = {clock, report.samples.at(id)};
    if (reports.size() < server_count_) continue;
    news.phase = WorkerPhase::kDead;
    for (const auto& [server, theirs] : reports)
      if (theirs.first > news.final_clock) std::tie(news.final_clock, news.final_samples) = theirs;
    publish();
    if (events_.chance(0.5)) events_.soon(300, [this, who = id] { begin_join(who); });
  }
  on_joining(s, report);
  if (news_.stage == 1 && report.held == news_.checkpoint) {
    held_reports_[s] = report.applied;
    if (held_reports_.size() < server_count_) return;
    news_.stage = 2;
    for (const auto& [server, clocks] : held_reports_)
      for (const auto& [id, clock] : clocks) news_.cut[id] = std::max(news_.cut[id], clock);
    publish();
  } else if (news_.stage == 2) {
    for (const Server& server : servers_)
      if (!server.snapshots.contains(news_.checkpoint)) return;
    committed_checkpoint_ = news_.checkpoint;
    ++happened_.checkpoints;
    news_.stage = 0;
    publish();
    events_.soon(300, [this] { maybe_checkpoint(); });
  }
}

// --- workers that join -------------------------------------------------------------------------

bool World::everybody_left() const {
  return std::ranges::none_of(news_.workers, [](const server::WorkerNews& worker) {
    return worker.phase == WorkerPhase::kLive || worker.phase == WorkerPhase::kResolving;
  });
}

bool World::somebody_joins() const {
  return std::ranges::any_of(joiners_, [](const auto& entry) {
    return entry.second.told != 0 && entry.second.taken_in == 0;
  });
}

void World::begin_to_grow() {
  if (everybody_left()) return;
  const WorkerId id(static_cast<std::uint32_t>(workers_.size()));
  workers_.push_back({.id = id, .alive = false, .grown = true});
  news_.workers.push_back({id, incarnation(id), WorkerPhase::kDead, Clock(0)});
  ++happened_.grown;
  begin_join(id);
}

void World::begin_join(WorkerId id) {
  if (everybody_left() || joiners_.contains(id)) return;
  joiners_[id] = {};
  publish();
  // One that dies before it is in leaves nothing.
  if (events_.chance(0.1))
    events_.soon(100, [this, id] {
      if (!joiners_.contains(id) || joiners_[id].taken_in != 0) return;
      forget_joiner(id);
    });
}

void World::forget_joiner(WorkerId id) {
  ++workers_[id.value()].life;  // the next is another process
  joiners_.erase(id);
  publish();
}

void World::on_joining(std::size_t s, const Report& report) {
  for (const auto& [id, clock] : report.joining) {
    const auto found = joiners_.find(id);
    if (found == joiners_.end() || found->second.told == 0 || found->second.taken_in != 0 ||
        report.view < found->second.told)
      continue;
    if (!clock) {
      forget_joiner(id);
      continue;
    }
    found->second.clocks[s] = *clock;
    if (found->second.clocks.size() == server_count_) take_in(id, found->second);
  }
  std::erase_if(joiners_, [&](const auto& entry) {
    const auto& [id, joiner] = entry;
    if (joiner.taken_in == 0 || std::ranges::any_of(server_views_, [&](std::uint64_t view) {
          return view < joiner.taken_in;
        }))
      return false;
    start_joined(workers_[id.value()]);
    return true;
  });
}

void World::take_in(WorkerId id, Joiner& joiner) {
  Worker& worker = workers_[id.value()];
  const std::uint64_t ended = news_.workers[id.value()].final_clock.value();
  std::uint64_t first = worker.grown && worker.life == 0 ? 0 : ended + 2;
  for (const auto& [server, clock] : joiner.clocks) first = std::max(first, clock.value());
  for (std::uint64_t clock = ended; clock < first; ++clock) never_.insert({id, Clock(clock)});
  worker = {.id = id,
            .clock = first,
            .life = worker.life + 1,
            .alive = false,
            .grown = worker.grown,
            .slowness = worker.slowness};
  news_.workers[id.value()] = {.id = id,
                               .incarnation = incarnation(id),
                               .phase = WorkerPhase::kLive,
                               .first_clock = Clock(first)};
  publish();
  joiner.taken_in = news_.version;
}

// Every server knows it.
void World::start_joined(Worker& worker) {
  worker.alive = true;
  ++happened_.joins;
  worker.crash_at_random = events_.chance(0.2);
  if (worker.crash_at_random) later(worker, 300 * steps_, [this, &worker] { crash(worker); });
  for (std::size_t s = 0; s < server_count_; ++s) worker.confirmed[s] = worker.clock;
  if (news_.initializer == worker.id) push_initial(worker);
  if (worker.clock >= steps_)
    finish(worker);
  else
    start_pull(worker);
}

void World::maybe_checkpoint() {
  if (somebody_joins()) return events_.soon(50, [this] { maybe_checkpoint(); });
  news_.stage = 1;
  news_.checkpoint = fmt::format("{:06}", ++checkpoints_);
  news_.cut.clear();
  held_reports_.clear();
  publish();
}

// The whole job again, from its last checkpoint.
void World::restart() {
  if (committed_checkpoint_.empty()) return;
  events_.forget();
  ++run_;
  ++happened_.restarts;
  const auto& saved = servers_[0].snapshots.at(committed_checkpoint_).clocks;
  for (Worker& worker : workers_) {
    const bool known = saved.contains(worker.id);
    const std::uint64_t clock = known ? saved.at(worker.id) : 0;
    const auto later = [&](const StepId& step) {
      return step.worker == worker.id && step.clock >= Clock(clock);
    };
    std::erase_if(abandoned_, later);
    std::erase_if(commit_sent_, later);
    std::erase_if(never_, later);
    first_clock_ = std::max(first_clock_, clock);
    worker = Worker{.id = worker.id,
                    .clock = clock,
                    .alive = known,
                    .initial_done = true,
                    .slowness = worker.slowness};
    news_.workers[worker.id.value()] = {worker.id, incarnation(worker.id),
                                        known ? WorkerPhase::kLive : WorkerPhase::kDead, Clock(0)};
  }
  news_ = {.version = news_.version, .workers = news_.workers, .initializer = WorkerId(0)};
  resolve_reports_.clear();
  resolving_since_.clear();
  joiners_.clear();
  std::ranges::fill(server_views_, 0);
  held_reports_.clear();
  for (std::size_t s = 0; s < server_count_; ++s) {
    Server fresh{.core = make_core(s, true)};
    fresh.visible = servers_[s].snapshots.at(committed_checkpoint_).steps;
    servers_[s] = std::move(fresh);
    report(s);
  }
  committed_checkpoint_.clear();
  publish();
  events_.soon(400, [this] { maybe_checkpoint(); });
  for (Worker& worker : workers_) {
    if (!worker.alive) continue;
    for (std::size_t s = 0; s < server_count_; ++s) worker.confirmed[s] = worker.clock;
    if (worker.clock >= steps_)
      finish(worker);
    else
      start_pull(worker);
  }
}

void World::finish(Worker& worker) {
  worker.finished = true;
  auto& news = news_.workers[worker.id.value()];
  news.phase = WorkerPhase::kFinished;
  news.final_clock = Clock(worker.clock);
  publish();
}

bool World::everybody_done() const {
  if (std::ranges::any_of(joiners_, [](const auto& one) { return one.second.taken_in != 0; }))
    return false;
  for (const Worker& worker : workers_) {
    if (worker.alive && !worker.finished) return false;
    if (!worker.alive && news_.workers[worker.id.value()].phase != WorkerPhase::kDead) return false;
  }
  // Nothing is left to be applied either, and no checkpoint is half done.
  for (const Server& server : servers_) {
    if (server.view != news_.version) return false;
    for (const auto& [id, worker] : server.core->workers())
      if (worker.applied != worker.ended || !worker.steps.empty()) return false;
  }
  return true;
}

void World::check_end() const {
  for (const Server& server : servers_) {
    if (server.visible != servers_[0].visible) broken("servers hold different steps at the end");
    for (const Worker& worker : workers_)
      for (std::uint64_t clock = 0; worker.finished && clock < steps_; ++clock)
        if (!holds(server, worker.id, clock))
          broken(fmt::format("step {} of worker.{} is lost", clock, worker.id.value()));
  }
}

}  // namespace leeway::sim
