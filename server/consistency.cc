#include "server/consistency.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "kernels/codec.h"

namespace leeway::server {

using transport::Codec;
using transport::Ending;
using transport::Sender;

namespace {

// A worker's pace is the mean over about so many of its last steps.
constexpr int kPaceMemory = 4;
}  // namespace

Consistency::Consistency(CoreConfig config)
    : config_(std::move(config)),
      gate_(config_.per_clock, config_.bugs.gate_slack),
      slabs_(config_.per_clock, config_.slabs),
      norms_(config_.norms, config_.bugs.norms_of_any_clock),
      clock_rule_(config_.quorum, config_.grace),
      initialized_(config_.initialized) {
  for (LocalPartition p = 0; p < config_.partitions.size(); ++p) {
    local_.emplace(config_.partitions[p].id, p);
    if (config_.partitions[p].elements > 0) ++payloads_per_step_;
  }
  std::optional<Clock> first;
  for (const auto& [id, start] : config_.workers) {
    WorkerState& worker = workers_[id];
    worker.incarnation = start.incarnation;
    worker.start = worker.ended = worker.applied = worker.given = start.clock;
    worker.state = start.state;
    worker.bound = config_.staleness.low.value_or(0);
    // With a quorum, whoever was late at the checkpoint is late again.
    if (!first || (config_.quorum != 0 ? start.clock > *first : start.clock < *first))
      first = start.clock;
  }
  clock_ = first.value_or(Clock(0));
}

void Consistency::refuse(const Sender& sender, Code code, std::string text,
                         Effects& effects) const {
  effects.emplace_back(Refuse{sender, code, std::move(text)});
}

void Consistency::violation(const Sender& sender, std::string text, Effects& effects) {
  give_up(WorkerId(sender.id));
  refuse(sender, Code::kInvalidArgument, std::move(text), effects);
}

void Consistency::give_up(WorkerId id) {
  workers_.at(id).barred = true;
  slabs_.forget(id);
}

WorkerState* Consistency::check(const Sender& sender, Effects& effects) const {
  if (sender.job != config_.job) {
    refuse(sender, Code::kRefused,
           fmt::format("worker.{} belongs to job {:x}, this is job {:x}: start it through this "
                       "job's leeway-run",
                       sender.id, sender.job, config_.job),
           effects);
    return nullptr;
  }
  const auto found = workers_.find(WorkerId(sender.id));
  if (found == workers_.end()) {
    refuse(sender, Code::kRefused, fmt::format("this job has no worker.{}", sender.id), effects);
    return nullptr;
  }
  const WorkerState& worker = found->second;
  if (worker.incarnation != sender.incarnation) {
    refuse(sender, Code::kRefused,
           fmt::format("worker.{} incarnation {} is stale, the job knows {}", sender.id,
                       sender.incarnation.value(), worker.incarnation.value()),
           effects);
    return nullptr;
  }
  if (worker.phase == WorkerPhase::kFinished) return nullptr;  // an echo of what was done
  if (!worker.live() || worker.barred) {
    refuse(sender, Code::kRefused,
           fmt::format("worker.{} was given up by {}", sender.id,
                       worker.barred ? "this server after an error" : "the scheduler"),
           effects);
    return nullptr;
  }
  return const_cast<WorkerState*>(&worker);
}

// --- PUSH ------------------------------------------------------------------------------------

std::string Consistency::entry_error(const transport::Push::Entry& entry, LocalPartition partition,
                                     std::span<const std::byte> inlined) const {
  const std::uint64_t elements = config_.partitions[partition].elements;
  const GradientCodec codec = entry.initial ? GradientCodec{Codec::kF32} : config_.codec;
  if (entry.codec != codec.codec)
    return fmt::format("partition {} comes in codec {}, {} must be {}", entry.partition.value(),
                       to_string(entry.codec), entry.initial ? "initial values" : "gradients",
                       to_string(codec.codec));
  const std::uint64_t bytes = codec.bytes(elements);
  if (entry.bytes != bytes)
    return fmt::format("partition {} comes with {} bytes, it has {} elements = {} bytes",
                       entry.partition.value(), entry.bytes, elements, bytes);
  if (!std::isfinite(entry.scale) || !(entry.scale > 0))
    return fmt::format("partition {} has scale {}, which is not a positive number",
                       entry.partition.value(), entry.scale);
  if (entry.inlined)
    if (const std::string error = kernels::payload_error(codec, inlined, elements); !error.empty())
      return fmt::format("partition {}: {}", entry.partition.value(), error);
  return {};
}

OpenStep& Consistency::open_step(std::optional<OpenStep>& slot, Clock clock, TimePoint now) {
  if (!slot) {
    slot.emplace();
    slot->clock = clock;
    slot->arrival = arrivals_++;
    slot->since = now;
    slot->payloads.resize(config_.partitions.size(), OpenStep::Payload::kAbsent);
    slot->offers.resize(config_.partitions.size());
    slot->scales.resize(config_.partitions.size(), 1.0f);
  }
  return *slot;
}

void Consistency::start_read(StepId step, OpenStep& open, LocalPartition partition, bool initial,
                             Effects& effects) {
  const OpenStep::Offer& offer = open.offers[partition];
  open.payloads[partition] = OpenStep::Payload::kReading;
  ++open.reading;
  if (initial) ++initial_reading_;
  effects.emplace_back(ReadPayload{.step = step,
                                   .partition = partition,
                                   .slab = open.slab.value_or(0),
                                   .initial = initial,
                                   .from = offer.from,
                                   .bytes = offer.bytes,
                                   .checksum = offer.checksum});
}

void Consistency::push_entry(const Sender& sender, WorkerState& worker, const transport::Push& push,
                             const transport::Push::Entry& entry,
                             std::span<const std::byte> inlined, TimePoint now, Effects& effects) {
  const WorkerId id(sender.id);
  const auto found = local_.find(entry.partition);
  if (found == local_.end())
    return violation(sender,
                     fmt::format("partition {} is not on this server", entry.partition.value()),
                     effects);
  const LocalPartition partition = found->second;
  if (std::string error = entry_error(entry, partition, inlined); !error.empty())
    return violation(sender, std::move(error), effects);

  const StepId step{id, push.clock};
  const bool done = entry.initial ? initialized_ || publishing_initial_
                                  : push.clock < worker.ended && !config_.bugs.no_dedupe;
  if (done || config_.partitions[partition].elements == 0) {
    effects.emplace_back(SendTaken{step, entry.partition, entry.initial});
    return;
  }
  if (entry.initial && push.clock != Clock(0))
    return violation(sender, "initial values belong to clock 0", effects);
  if (!entry.initial && !initialized_)
    return violation(sender, "a gradient came before the initial values", effects);
  if (!entry.initial && push.clock > worker.ended)
    return violation(sender,
                     fmt::format("worker.{} pushes step {}, its step {} has not ended", sender.id,
                                 push.clock.value(), worker.ended.value()),
                     effects);

  OpenStep& open = open_step(entry.initial ? worker.initial : worker.open, push.clock, now);
  OpenStep::Payload& payload = open.payloads[partition];
  if (payload == OpenStep::Payload::kTaken) {
    effects.emplace_back(SendTaken{step, entry.partition, entry.initial});
    return;
  }
  if (payload != OpenStep::Payload::kAbsent) return;  // on its way
  ++open.offered;
  open.offers[partition] = {{push.memory, entry.offset}, entry.bytes, entry.checksum};
  open.scales[partition] = entry.scale;
  if (!entry.initial && !open.slab && open.offered == 1) {
    slabs_.wait(id, open);
    admit(effects);
  }
  payload = OpenStep::Payload::kOffered;
  // Without a slab it is read later, also when it came along. advance() reads initial values when
  // it is this worker's turn.
  if (entry.initial || !open.slab) return;
  if (!entry.inlined) return start_read(step, open, partition, false, effects);
  effects.emplace_back(StorePayload{partition, *open.slab, {inlined.begin(), inlined.end()}});
  payload_taken(step, worker, open, partition, entry.initial, effects);
}

Effects Consistency::push(const Sender& sender, const transport::Push& push, TimePoint now) {
  Effects effects;
  now_ = now;
  WorkerState* worker = check(sender, effects);
  if (worker == nullptr) return effects;
  std::span<const std::byte> payload = push.payload;
  for (const transport::Push::Entry& entry : push.entries) {
    const auto inlined = payload.first(entry.inlined ? entry.bytes : 0);
    payload = payload.subspan(inlined.size());
    push_entry(sender, *worker, push, entry, inlined, now, effects);
    if (worker->barred) break;
  }
  advance(effects);
  return effects;
}

void Consistency::payload_taken(StepId step, WorkerState& worker, OpenStep& open,
                                LocalPartition partition, bool initial, Effects& effects) {
  open.payloads[partition] = OpenStep::Payload::kTaken;
  ++open.taken;
  if (!open.ending) {
    effects.emplace_back(SendTaken{step, config_.partitions[partition].id, initial});
  } else if (whole(&open) && worker.live() && !worker.barred) {
    // Of a worker that is being resolved, what was reported stays true: nothing more is counted.
    effects.emplace_back(SendCommitted{step, open.ending->ending});  // and all of it is taken
    close(step.worker, worker, std::move(*open.ending));
  }
}

Effects Consistency::read_done(const ReadPayload& read, bool ok, bool released,
                               const std::string& why, TimePoint now) {
  Effects effects;
  now_ = now;
  WorkerState& worker = workers_.at(read.step.worker);
  if (read.initial) --initial_reading_;
  if (!released && read.initial)
    effects.emplace_back(Fault{fmt::format(
        "the fabric still holds the master weights after a failed transfer from worker.{}: {}",
        read.step.worker.value(), why)});

  if (const auto dropped = draining_.find(read.step); dropped != draining_.end() && !read.initial) {
    Draining& draining = dropped->second;
    draining.quarantined |= !released;
    if (--draining.reading == 0) {
      if (draining.slab && draining.quarantined) lose_slab(effects);
      if (draining.slab && !draining.quarantined) slabs_.release(*draining.slab);
      draining_.erase(dropped);
    }
    advance(effects);
    return effects;
  }

  std::optional<OpenStep>& slot = read.initial ? worker.initial : worker.open;
  if (slot && slot->clock == read.step.clock) {
    OpenStep& open = *slot;
    --open.reading;
    if (ok) {
      payload_taken(read.step, worker, open, read.partition, read.initial, effects);
    } else {
      // It stays "reading": nothing repeats the read of a worker that was given up.
      if (worker.live() && !worker.barred)
        refuse(Sender{config_.job, worker.incarnation, read.step.worker.value()},
               Code::kUnavailable,
               fmt::format("the gradient of step {} could not be read: {}", read.step.clock.value(),
                           why),
               effects);
      give_up(read.step.worker);
      if (!released && open.slab) {
        open.slab.reset();
        lose_slab(effects);
      }
    }
  }
  advance(effects);
  return effects;
}

// --- COMMIT, ABANDON, INITIAL ------------------------------------------------------------------

bool Consistency::whole(const OpenStep* open) const {
  return payloads_per_step_ == 0 || (open != nullptr && open->taken == payloads_per_step_);
}

void Consistency::end_initial(const Sender& sender, WorkerState& worker, Effects& effects) {
  if (initialized_) {
    effects.emplace_back(SendCommitted{{WorkerId(sender.id), Clock(0)}, Ending::kInitial});
    return;
  }
  if (publishing_initial_) return;  // answered when they are published
  if (!whole(worker.initial ? &*worker.initial : nullptr))
    return violation(sender, "the initial values ended before all of them were taken", effects);
  initial_ended_by_ = sender;
  publishing_initial_ = true;
  effects.emplace_back(PublishInitial{});
}

Effects Consistency::initial_published(TimePoint now) {
  Effects effects;
  now_ = now;
  publishing_initial_ = false;
  initialized_ = true;
  for (auto& [id, worker] : workers_) {
    // Whoever was to be next has offered some that are not needed any more.
    for (LocalPartition p = 0; worker.initial && p < worker.initial->payloads.size(); ++p)
      if (worker.initial->payloads[p] == OpenStep::Payload::kOffered && worker.live())
        effects.emplace_back(SendTaken{{id, Clock(0)}, config_.partitions[p].id, true});
    worker.initial.reset();
  }
  effects.emplace_back(
      SendCommitted{{WorkerId(initial_ended_by_->id), Clock(0)}, Ending::kInitial});
  advance(effects);
  return effects;
}

void Consistency::close(WorkerId id, WorkerState& worker, transport::Commit commit) {
  const bool committed = commit.ending == Ending::kCommit;
  // A step without samples counts as one: it is in the sum all the same.
  EndedStep step{.clock = worker.ended,
                 .committed = committed,
                 .worker_state = std::move(commit.worker_state),
                 .samples = std::max(commit.samples, 1u),
                 .based_on = worker.based_on,
                 .factor = commit.factor};
  worker.samples = step.samples;
  if (worker.answered_at) {
    const Duration took = std::max(now_ - *worker.answered_at, Duration(1));
    worker.pace += worker.pace == Duration() ? took : (took - worker.pace) / kPaceMemory;
    worker.answered_at.reset();
  }
  if (worker.open) {
    if (committed) {
      step.slab = worker.open->slab;
      step.scales = std::move(worker.open->scales);
    } else if (worker.open->slab) {
      slabs_.release(*worker.open->slab);
    }
    worker.open.reset();
  }
  if (!config_.per_clock) queue_.push_back({id, step.clock});
  worker.steps.push_back(std::move(step));
  worker.ended = worker.ended.next();
  worker.last_abandoned = !committed;
  if (committed) {
    worker.last_factor = commit.factor;
    worker.last_samples = step.samples;
  }
}

Effects Consistency::end_step(const Sender& sender, const transport::Commit& commit,
                              TimePoint now) {
  Effects effects;
  now_ = now;
  WorkerState* worker = check(sender, effects);
  if (worker == nullptr) return effects;
  const WorkerId id(sender.id);
  if (commit.ending == Ending::kInitial) {
    end_initial(sender, *worker, effects);
    advance(effects);
    return effects;
  }
  const bool planted =
      config_.bugs.no_dedupe && worker->open && worker->open->clock == commit.clock;
  if (commit.clock < worker->ended && !planted) {
    effects.emplace_back(SendCommitted{{id, commit.clock}, commit.ending});
    return effects;
  }
  if (commit.clock == worker->ended && commit.clock > worker->given &&
      worker->steps.size() >= most_ended()) {
    violation(sender,
              fmt::format("worker.{} ends step {}, the last weights that it got are for step {}",
                          sender.id, commit.clock.value(), worker->given.value()),
              effects);
    return effects;
  }
  const bool committed = commit.ending == Ending::kCommit;
  const OpenStep* open = worker->open ? &*worker->open : nullptr;
  const bool early = committed ? !whole(open) : open != nullptr && open->offered != open->taken;
  if (commit.clock == worker->ended && initialized_ && early && committed && config_.only_server) {
    OpenStep& waiting = open_step(worker->open, commit.clock, now);
    if (!waiting.ending) waiting.ending = commit;
    return effects;
  }
  if (commit.clock > worker->ended || !initialized_ || early) {
    violation(sender,
              fmt::format("worker.{} ends step {} {}", sender.id, commit.clock.value(),
                          early ? "before all its gradients were taken"
                                : "before the one that came before it"),
              effects);
    return effects;
  }
  close(id, *worker, commit);
  effects.emplace_back(SendCommitted{{id, commit.clock}, commit.ending});
  advance(effects);
  return effects;
}

// --- NORMS -------------------------------------------------------------------------------------

Effects Consistency::norms(const Sender& sender, const transport::Norms& norms, TimePoint now) {
  Effects effects;
  now_ = now;
  const auto known = config_.norms.servers.find(ServerId(sender.id));
  if (sender.job != config_.job || known == config_.norms.servers.end() ||
      known->second != sender.incarnation) {
    effects.emplace_back(Ignore{fmt::format(
        "norms of server.{} incarnation {} of job {:x}, which shares no tensor with this one",
        sender.id, sender.incarnation.value(), sender.job)});
    return effects;
  }
  norms_.receive(known->first, norms, effects);
  if (!joiners_.empty()) advance(effects);  // the clock may go on
  return effects;
}

Effects Consistency::part_summed(LocalPartition partition, const NormSums& sums, TimePoint now) {
  Effects effects;
  now_ = now;
  norms_.part_summed(partition, sums, now, effects);
  return effects;
}

// --- PULL --------------------------------------------------------------------------------------

Effects Consistency::pull(const Sender& sender, const transport::Pull& pull, TimePoint now) {
  Effects effects;
  now_ = now;
  WorkerState* worker = check(sender, effects);
  if (worker == nullptr) return effects;
  const auto bad = [&](std::string text) { violation(sender, std::move(text), effects); };

  if (worker->answered && pull.request <= *worker->answered) {
    if (pull.request == *worker->answered)
      effects.emplace_back(RepeatAnswer{WorkerId(sender.id), pull.request});
    return effects;
  }
  const std::uint64_t bound =
      pull.staleness == transport::kUnboundedStaleness ? Bound::kInfinite : pull.staleness;
  if (bound > config_.staleness.value) {
    bad(fmt::format("worker.{} pulls with staleness {}, the job's bound is {}", sender.id,
                    pull.staleness, config_.staleness.value));
    return effects;
  }
  if (pull.clock > worker->ended.next() || pull.clock < worker->start) {
    bad(fmt::format("worker.{} pulls for step {}, {} of its steps have ended here", sender.id,
                    pull.clock.value(), worker->ended.value()));
    return effects;
  }
  if (pull.total > config_.partitions.size()) {
    bad(fmt::format("a pull of {} partitions, this server has {}", pull.total,
                    config_.partitions.size()));
    return effects;
  }
  if (worker->pull && worker->pull->request > pull.request) return effects;  // overtaken
  if (!worker->pull || worker->pull->request != pull.request)
    worker->pull = PendingPull{.clock = pull.clock,
                               .request = pull.request,
                               .asked = bound,
                               .bound = std::min(bound, config_.staleness.low.value_or(bound)),
                               .total = pull.total,
                               .since = now,
                               .named = std::vector<bool>(config_.partitions.size())};
  for (const transport::Pull::Entry& entry : pull.entries) {
    const auto found = local_.find(entry.partition);
    if (found == local_.end()) {
      bad(fmt::format("partition {} is not on this server", entry.partition.value()));
      return effects;
    }
    if (worker->pull->named[found->second]) continue;  // this message came before
    worker->pull->named[found->second] = true;
    worker->pull->entries.push_back({found->second, entry.have, {pull.memory, entry.offset}});
  }
  if (worker->pull->entries.size() > worker->pull->total) {
    bad(fmt::format("pull {} names more partitions than it announced", pull.request));
    return effects;
  }
  advance(effects);
  return effects;
}

}  // namespace leeway::server
