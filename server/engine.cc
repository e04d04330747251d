#include "server/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <utility>

#include "common/half.h"
#include "common/log.h"
#include "kernels/codec.h"
#include "server/engine_parts.h"
#include "transport/crc32c.h"

namespace leeway::server {
namespace {

constexpr milliseconds kWaitingIsLong{5000};
constexpr milliseconds kLookAtWaiting{1000};
constexpr milliseconds kRepeatWaiting{30000};
constexpr milliseconds kReportTimeout{2000};

// A payload that was damaged in the message is read from the worker instead.
void drop_damaged(transport::Push& push) {
  std::size_t at = 0;
  for (transport::Push::Entry& entry : push.entries) {
    if (!entry.inlined) continue;
    const auto payload = std::span(push.payload).subspan(at, entry.bytes);
    if (!entry.checksum || transport::crc32c(payload) == *entry.checksum) {
      at += entry.bytes;
      continue;
    }
    push.payload.erase(push.payload.begin() + static_cast<std::ptrdiff_t>(at),
                       push.payload.begin() + static_cast<std::ptrdiff_t>(at + entry.bytes));
    entry.inlined = false;
  }
}

}  // namespace

// --- messages in ---------------------------------------------------------------------------------

void Engine::on_frame(std::span<const std::byte> frame) {
  in_frame_ = true;
  while (!frame.empty()) {
    auto message = transport::decode_next(frame);
    if (message)
      on_message(*message);
    else
      stray(message.error().message);
  }
  flush();
}

// Anybody can send bytes to an open endpoint: said once, then at each power of two.
void Engine::stray(const std::string& why) {
  const std::uint64_t count = ++strays_;
  if ((count & (count - 1)) == 0) log::warning("refused a message ({} so far), {}", count, why);
}

// What this turn had to say to each worker.
void Engine::flush() {
  in_frame_ = true;
  flush_taken();
  in_frame_ = false;
  outbox_.flush();
}

void Engine::flush_soon() {
  if (!in_frame_) endpoint_->post([this] { flush(); });
}

void Engine::on_message(transport::Message& message) {
  const TimePoint now = MonotonicClock::now();
  if (auto* push = std::get_if<transport::Push>(&message.body)) {
    drop_damaged(*push);
    run(core_->push(message.sender, *push, now));
  } else if (const auto* commit = std::get_if<transport::Commit>(&message.body)) {
    run(core_->end_step(message.sender, *commit, now));
  } else if (const auto* pull = std::get_if<transport::Pull>(&message.body)) {
    run(core_->pull(message.sender, *pull, now));
  } else if (const auto* norms = std::get_if<transport::Norms>(&message.body)) {
    run(core_->norms(message.sender, *norms, now));
  } else if (const auto* refused = std::get_if<transport::Refused>(&message.body)) {
    log::warning("worker.{} refused: {}", message.sender.id, refused->text);
  } else {
    stray(fmt::format("worker.{} sent what only servers send", message.sender.id));
  }
}

// Effects of one input are carried out before those of the next, also when one causes the other.
void Engine::run(Effects effects) {
  std::ranges::move(effects, std::back_inserter(pending_));
  if (running_) return;
  running_ = true;
  while (!pending_.empty() && !stopping_) {
    for (Effect& effect : std::exchange(pending_, {}))
      std::visit([this](auto& what) { carry_out(what); }, effect);
  }
  running_ = false;
}

// --- messages out --------------------------------------------------------------------------------

TimePoint Engine::deadline() const {
  return MonotonicClock::now() + config_.settings.transfer_timeout_ms;
}

void Engine::send(WorkerId worker, const transport::Body& body) {
  const transport::Sender self{config_.job, config_.incarnation, config_.server.value()};
  if (outbox_.add(worker.value(), transport::encode(self, body))) flush_soon();
}

void Engine::send_frame(WorkerId worker, const transport::Outbox::Frame& frame) {
  const auto peer = peers_.find(worker);
  if (peer == peers_.end()) return;
  endpoint_->send(
      peer->second, frame, deadline(),
      [this, worker, incarnation = incarnation_of(worker)](const transport::Outcome& outcome) {
        if (!outcome.status && !stopping_)
          run(core_->bar(
              worker, incarnation,
              fmt::format("a message could not be sent to it: {}", outcome.status.error().message),
              MonotonicClock::now()));
      });
}

void Engine::carry_out(SendTaken& effect) {
  // All that was taken in this turn of the loop goes out in one message.
  if (taken_.empty()) flush_soon();
  const Clock clock = effect.initial ? transport::kInitialValues : effect.step.clock;
  taken_[{effect.step.worker, clock}].push_back(effect.partition);
}

void Engine::flush_taken() {
  const std::size_t most = transport::max_push_taken_entries(endpoint_->info().max_message);
  for (const auto& [step, partitions] : std::exchange(taken_, {})) {
    for (std::size_t begin = 0; begin < partitions.size(); begin += most) {
      const auto first = partitions.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto count = static_cast<std::ptrdiff_t>(std::min(most, partitions.size() - begin));
      send(step.worker, transport::PushTaken{step.clock, {first, first + count}});
    }
  }
}

void Engine::carry_out(SendCommitted& effect) {
  if (effect.ending == transport::Ending::kAbandon) release_mapped_of_the_abandoned(effect.step);
  taken_.erase(effect.step);  // this says that, too
  send(effect.step.worker, transport::Committed{effect.step.clock, effect.ending});
}

void Engine::carry_out(Refuse& effect) {
  const auto known = core_->workers().find(WorkerId(effect.sender.id));
  // A stale process lives at another address than the one we know.
  if (known == core_->workers().end() || known->second.incarnation != effect.sender.incarnation ||
      effect.sender.job != config_.job)
    return stray(fmt::format("of worker.{}: {}", effect.sender.id, effect.text));
  if (std::exchange(refusals_[known->first], effect.text) != effect.text)
    log::warning("refused worker.{}: {}", effect.sender.id, effect.text);
  send(known->first, transport::Refused{effect.code, effect.text});
}

void Engine::carry_out(SendNorms& effect) {
  const transport::Sender self{config_.job, config_.incarnation, config_.server.value()};
  const std::size_t most = transport::max_norms_entries(endpoint_->info().max_message);
  const auto& entries = effect.norms.entries;
  for (std::size_t begin = 0; begin < entries.size(); begin += most) {
    const auto first = entries.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto count = static_cast<std::ptrdiff_t>(std::min(most, entries.size() - begin));
    const transport::Norms part{effect.norms.clock, {first, first + count}};
    endpoint_->send(servers_.at(effect.to), transport::encode(self, part), deadline(),
                    [this, to = effect.to](const transport::Outcome& outcome) {
                      // That one would wait for them for long.
                      if (!outcome.status && !stopping_ && report_.fault.empty())
                        report_.fault = fmt::format("norms could not be sent to server.{}: {}",
                                                    to.value(), outcome.status.error().message);
                    });
  }
}

void Engine::carry_out(Ignore& effect) { stray(effect.why); }

void Engine::carry_out(Fault& effect) {
  if (report_.fault.empty()) report_.fault = effect.reason;
}

void Engine::carry_out(Disconnect& effect) {
  if (const auto peer = peers_.find(effect.worker); peer != peers_.end()) {
    const transport::Peer gone = peer->second;
    peers_.erase(peer);
    endpoint_->disconnect(gone);
  }
}

// --- bulk transfers ------------------------------------------------------------------------------

// Where the rail can map it a gradient is not copied at all: nothing can take it from us any more,
// and the worker leaves it alone until it has the weights of its next step, which it gets, under
// per_push, when this one is applied.
bool Engine::map_payload(const ReadPayload& read) {
  if (read.initial || config_.settings.per_clock()) return false;
  // Its indices are checked when it is taken: nobody may change them after that.
  if (layout_.shape().codec.codec == Codec::kTopK) return false;
  const auto peer = peers_.find(read.step.worker);
  if (peer == peers_.end()) return false;
  auto payload = endpoint_->map(peer->second, read.from, read.bytes);
  if (!payload || reinterpret_cast<std::uintptr_t>(payload.get()) % alignof(Half) != 0)
    return false;
  if (const auto old = mapped_.find(read.slab);
      old != mapped_.end() && old->second.step != read.step)
    release_mapped(read.slab);  // its worker died
  mapped_[read.slab].step = read.step;
  mapped_[read.slab].payloads[read.partition] = payload;
  shard_->read_from(read.partition, read.slab, payload.get());
  if (read.checksum)
    verify(read, std::move(payload), false);
  else
    end_read(read, {});
  return true;
}

void Engine::release_mapped(std::uint32_t slab) {
  const auto mapped = mapped_.find(slab);
  if (mapped == mapped_.end()) return;
  for (const auto& [partition, bytes] : mapped->second.payloads)
    shard_->read_from(partition, slab, nullptr);
  mapped_.erase(mapped);
}

void Engine::keep_in_slab(LocalPartition partition, std::uint32_t slab) {
  shard_->read_from(partition, slab, nullptr);
  if (const auto mapped = mapped_.find(slab); mapped != mapped_.end())
    mapped->second.payloads.erase(partition);
}

void Engine::release_mapped_of_the_abandoned(StepId step) {
  const auto mapped = std::ranges::find(mapped_, step, [](const auto& m) { return m.second.step; });
  if (mapped != mapped_.end()) release_mapped(mapped->first);
}

// What a worker that died or was given up left behind, unless it counts.
void Engine::release_mapped_of_the_gone() {
  std::vector<std::uint32_t> over;
  for (const auto& [slab, mapped] : mapped_) {
    const WorkerState& worker = core_->workers().at(mapped.step.worker);
    const bool open = worker.open && worker.open->clock == mapped.step.clock;
    const bool ended = std::ranges::any_of(
        worker.steps, [&](const EndedStep& step) { return step.clock == mapped.step.clock; });
    if (!open && !ended) over.push_back(slab);
  }
  for (const std::uint32_t slab : over) release_mapped(slab);
}

void Engine::carry_out(ReadPayload& effect) {
  if (map_payload(effect)) return;
  reads_.add(effect.step.worker, effect.bytes, [this, read = effect] { start_read(read, false); });
}

void Engine::start_read(const ReadPayload& read, bool again) {
  const auto place =
      read.initial ? layout_.master(read.partition) : layout_.slab(read.partition, read.slab);
  if (!read.initial) keep_in_slab(read.partition, read.slab);
  const transport::LocalRange into{read.initial ? &masters_ : &slabs_, place.offset, place.bytes};
  const auto done = [this, read, again, into](const transport::Outcome& outcome) {
    if (stopping_) return;
    reads_.finished(read.bytes);
    if (!outcome.status || !read.checksum) return end_read(read, outcome);
    // The slab is ours for as long as we live.
    verify(read, {std::shared_ptr<void>(), into.memory->bytes().data() + into.offset}, again);
  };
  const auto peer = peers_.find(read.step.worker);
  if (peer == peers_.end()) {
    endpoint_->post([done] { done({fail(Code::kUnavailable, "the worker is gone"), true}); });
    return;
  }
  endpoint_->read(peer->second, into, read.from, deadline(), done);
}

void Engine::verify(const ReadPayload& read, std::shared_ptr<const std::byte> payload, bool again) {
  pool_.run([this, read, payload = std::move(payload), again] {
    const bool good = transport::crc32c({payload.get(), read.bytes}) == *read.checksum;
    endpoint_->post([this, read, again, good] { verified(read, again, good); });
  });
}

void Engine::verified(const ReadPayload& read, bool again, bool good) {
  if (stopping_) return;
  if (good) return end_read(read, {});
  log::warning("partition {} of worker.{} does not match its CRC32C{}",
               bundles_[read.partition].id.value(), read.step.worker.value(),
               again ? " again" : ": it is read again");
  if (!again)
    return reads_.add(read.step.worker, read.bytes, [this, read] { start_read(read, true); });
  end_read(read,
           {fail(Code::kDataLoss,
                 "it does not match its CRC32C, twice: its memory or the way damages bytes")});
}

void Engine::end_read(const ReadPayload& read, transport::Outcome outcome) {
  if (outcome.status && !read.initial) {
    const std::string error =
        kernels::payload_error(layout_.shape().codec, shard_->payload(read.partition, read.slab),
                               shard_->elements(read.partition));
    if (!error.empty())
      outcome.status =
          fail(Code::kDataLoss,
               fmt::format("partition {}: {}", bundles_[read.partition].id.value(), error));
  }
  if (outcome.status) report_.bytes_read += read.bytes;
  run(core_->read_done(read, outcome.status.has_value(), outcome.memory_released,
                       outcome.status ? std::string() : outcome.status.error().message,
                       MonotonicClock::now()));
}

void Engine::carry_out(StorePayload& effect) {
  const auto place = layout_.slab(effect.partition, effect.slab);
  LEEWAY_CHECK(effect.bytes.size() == place.bytes);
  keep_in_slab(effect.partition, effect.slab);
  std::ranges::copy(effect.bytes, slabs_.bytes().subspan(place.offset).begin());
  report_.bytes_read += effect.bytes.size();
}

void Engine::carry_out(AnswerPull& effect) {
  // A worker asks anew when it has what it asked for; else the writes to it could pile up.
  if (!answering_.insert(effect.worker).second)
    return run(core_->bar(effect.worker, incarnation_of(effect.worker),
                          "it asks for weights again while some are on their way",
                          MonotonicClock::now()));
  auto pull = std::make_shared<PullTransfer>();
  pull->worker = effect.worker;
  pull->incarnation = incarnation_of(effect.worker);
  pull->pulled = {.clock = effect.clock,
                  .request = effect.request,
                  .slowest = effect.slowest,
                  .bound = static_cast<std::uint32_t>(
                      std::min<std::uint64_t>(effect.bound, transport::kUnboundedStaleness)),
                  .total = static_cast<std::uint32_t>(effect.entries.size())};
  // And one for this function, or for the update that runs: PULLED says that it is done.
  pull->unfinished = 1 + effect.entries.size();
  if (effect.entries.size() == order_.size())
    std::ranges::transform(effect.entries, order_.begin(), &AnswerPull::Entry::partition);
  for (const AnswerPull::Entry& entry : effect.entries) {
    if (update_ && !update_->done[entry.partition])
      update_->writes[entry.partition].push_back({pull, entry});
    else
      write_partition(pull, entry);
  }
  if (update_)
    update_->pulls.push_back(std::move(pull));
  else
    finish_pull(pull);
}

void Engine::write_partition(const std::shared_ptr<PullTransfer>& pull,
                             const AnswerPull::Entry& entry) {
  const LocalPartition p = entry.partition;
  pull->pulled.entries.push_back({bundles_[p].id, shard_->version(p)});
  if (shard_->elements(p) == 0 || shard_->version(p) == entry.have) return finish_pull(pull);
  const Shard::Reading reading = shard_->begin_read(p);
  const auto send = [this, pull, entry, reading] { queue_write(pull, entry, reading); };
  if (layout_.shape().remembered == 0) return send();
  pool_.run([this, send, p, reading, worker = pull->worker] {
    shard_->remember(p, reading.copy, worker);
    endpoint_->post([this, send] {
      if (!stopping_) send();
    });
  });
}

void Engine::queue_write(const std::shared_ptr<PullTransfer>& pull, const AnswerPull::Entry& entry,
                         const Shard::Reading& reading) {
  writes_.add(pull->worker, reading.place.bytes, [this, pull, entry, reading] {
    const auto done = [this, pull, entry, reading](const transport::Outcome& outcome) {
      if (stopping_) return;
      // Memory that the provider may still read is no danger: the worker never hears of it.
      shard_->end_read(entry.partition, reading.copy);
      if (outcome.status)
        report_.bytes_written += reading.place.bytes;
      else
        pull->error = outcome.status.error().message;
      finish_pull(pull);
      continue_update();
      writes_.finished(reading.place.bytes);
    };
    const auto peer = peers_.find(pull->worker);
    if (peer == peers_.end() || incarnation_of(pull->worker) != pull->incarnation) {
      endpoint_->post([done] { done({fail(Code::kUnavailable, "the worker is gone"), true}); });
      return;
    }
    endpoint_->write(peer->second, {&published_, reading.place.offset, reading.place.bytes},
                     entry.to, deadline(), done);
  });
}

void Engine::finish_pull(const std::shared_ptr<PullTransfer>& pull) {
  if (--pull->unfinished > 0) return;
  if (incarnation_of(pull->worker) != pull->incarnation) return;  // another has its place
  answering_.erase(pull->worker);
  if (!pull->error.empty())
    return run(core_->bar(pull->worker, pull->incarnation,
                          fmt::format("the weights for step {} could not be written to it: {}",
                                      pull->pulled.clock.value(), pull->error),
                          MonotonicClock::now()));
  last_answers_[pull->worker] = pull->pulled;
  send_pulled(pull->worker, pull->pulled);
}

void Engine::send_pulled(WorkerId worker, const transport::Pulled& pulled) {
  const std::size_t most = transport::max_pulled_entries(endpoint_->info().max_message);
  std::size_t begin = 0;
  do {  // also when there is no entry at all
    transport::Pulled part = pulled;
    const auto first = pulled.entries.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto count = static_cast<std::ptrdiff_t>(std::min(most, pulled.entries.size() - begin));
    part.entries.assign(first, first + count);
    send(worker, part);
    begin += most;
  } while (begin < pulled.entries.size());
}

void Engine::carry_out(RepeatAnswer& effect) {
  const auto answer = last_answers_.find(effect.worker);
  if (answer != last_answers_.end() && answer->second.request == effect.request)
    send_pulled(effect.worker, answer->second);
}

// --- the scheduler's word
// --------------------------------------------------------------------------

void Engine::view(EngineView view) {
  endpoint_->post([this, view = std::move(view)] { on_view(view); });
}

void Engine::on_view(const EngineView& view) {
  std::vector<WorkerNews> news;
  unreachable_.clear();
  for (const EngineView::Worker& worker : view.workers) {
    news.push_back(worker.news);
    if (worker.news.phase == WorkerPhase::kLive) reach(worker);
    if (worker.news.phase == WorkerPhase::kJoining && !worker.address.empty() &&
        !endpoint_->could_reach(worker.address))
      unreachable_.insert(worker.news.id);
  }
  rule_.change(view.settings);
  const TimePoint now = MonotonicClock::now();
  run(core_->view(news, view.initializer, now));
  run(core_->pause(view.paused, now));
  release_mapped_of_the_gone();
  switch (view.order) {
    case EngineView::Order::kNone:
      run(core_->release(now));
      break;
    case EngineView::Order::kHold:
      if (core_->held() != view.checkpoint) report_.checkpoint_error.clear();
      run(core_->hold(view.checkpoint, now));
      break;
    case EngineView::Order::kCut:
      run(core_->cut(view.checkpoint, view.cut, now));
      break;
  }
  report_.epoch = view.epoch;
  report_.busy = view.order != EngineView::Order::kNone;
}

Incarnation Engine::incarnation_of(WorkerId worker) const {
  const auto known = core_->workers().find(worker);
  return known == core_->workers().end() ? Incarnation() : known->second.incarnation;
}

void Engine::reach(const EngineView::Worker& worker) {
  const WorkerId id = worker.news.id;
  if (worker.address.empty() || peers_.contains(id)) return;
  if (incarnation_of(id) != worker.news.incarnation) {
    // A joiner: nothing that was said to whoever had its place is meant for it.
    answering_.erase(id);
    last_answers_.erase(id);
    refusals_.erase(id);
    log::info("worker.{} joins at clock {}", id.value(), worker.news.first_clock.value());
  }
  if (auto peer = endpoint_->connect(worker.address))
    peers_.emplace(id, *peer);
  else
    report_.fault = fmt::format("cannot reach worker.{}: {}", id.value(), peer.error().message);
}

Result<EngineReport> Engine::report() {
  struct Answer {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<EngineReport> report;
  };
  auto answer = std::make_shared<Answer>();
  const bool posted = endpoint_->post([this, answer] {
    EngineReport report = report_;
    report.applied = core_->applied();
    report.resolving = core_->resolving();
    report.joining = core_->joining();
    for (const WorkerId id : unreachable_) report.joining[id] = std::nullopt;
    report.last_factors = core_->last_factors();
    report.last_samples = core_->last_samples();
    report.held = core_->held();
    report.busy |= !report.resolving.empty() || core_->anybody_joins();
    for (const std::string& line : core_->waiting(MonotonicClock::now() - kWaitingIsLong))
      report.waiting += (report.waiting.empty() ? "" : "; ") + line;
    const std::lock_guard lock(answer->mutex);
    answer->report = std::move(report);
    answer->changed.notify_all();
  });
  std::unique_lock lock(answer->mutex);
  if (!posted ||
      !answer->changed.wait_for(lock, kReportTimeout, [&] { return answer->report.has_value(); }))
    return fail(Code::kTimedOut, "the fabric thread does not answer");
  return std::move(*answer->report);
}

void Engine::watch_waiting() {
  const TimePoint now = MonotonicClock::now();
  const auto lines = core_->waiting(now - kWaitingIsLong);
  if (!lines.empty() && now - said_waiting_ > kRepeatWaiting) {
    for (const std::string& line : lines) log::warning("{}", line);
    said_waiting_ = now;
  }
  if (lines.empty()) said_waiting_ = {};
  endpoint_->at(now + kLookAtWaiting, [this] { watch_waiting(); });
}

}  // namespace leeway::server
