// Servers without I/O for tests of the consistency core: what goes in as one call, what comes out
// sorted by kind. Payloads arrive when the test says so.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/consistency.h"

namespace leeway::server {

struct CoreOptions {
  bool per_clock = false;
  std::uint32_t quorum = 0;
  Grace grace;
  Bound staleness{0};
  std::uint32_t workers = 1;
  std::uint32_t slabs = 4;
  std::uint32_t minimal_slabs = 1;
  bool initialized = true;
  bool only_server = false;
  GradientCodec codec;
  NormConfig norms;
  std::vector<std::uint64_t> elements{4, 4};
};

class CoreFixture {
 public:
  explicit CoreFixture(const CoreOptions& options) : options_(options) {
    CoreConfig config{.job = 7,
                      .per_clock = options.per_clock,
                      .quorum = options.quorum,
                      .grace = options.grace,
                      .staleness = options.staleness,
                      .codec = options.codec,
                      .slabs = options.slabs,
                      .minimal_slabs = options.minimal_slabs,
                      .only_server = options.only_server,
                      .initialized = options.initialized,
                      .norms = options.norms};
    for (std::uint32_t p = 0; p < options.elements.size(); ++p)
      config.partitions.push_back({PartitionId(p), options.elements[p]});
    for (std::uint32_t w = 0; w < options.workers; ++w)
      config.workers[WorkerId(w)] = {Incarnation(w + 1), Clock(0), {}};
    core = std::make_unique<Consistency>(std::move(config));
  }

  static transport::Sender sender(std::uint32_t worker) {
    return {7, Incarnation(worker + 1), worker};
  }
  transport::Push make_push(std::uint64_t clock, std::uint32_t partition,
                            bool initial = false) const {
    transport::Push push{.clock = Clock(clock),
                         .memory = std::make_shared<transport::RemoteMemory>()};
    push.entries = {{.partition = PartitionId(partition),
                     .scale = 4,
                     .offset = 100,
                     .bytes = (initial ? GradientCodec{Codec::kF32} : options_.codec)
                                  .bytes(options_.elements[partition]),
                     .codec = initial ? Codec::kF32 : options_.codec.codec,
                     .initial = initial}};
    return push;
  }

  void push(std::uint32_t worker, std::uint64_t clock, std::uint32_t partition) {
    take(core->push(sender(worker), make_push(clock, partition), now));
  }
  void end(std::uint32_t worker, std::uint64_t clock,
           transport::Ending ending = transport::Ending::kCommit, std::uint32_t samples = 8) {
    take(core->end_step(sender(worker),
                        {.clock = Clock(clock), .ending = ending, .samples = samples}, now));
  }
  void pull(std::uint32_t worker, std::uint64_t clock, std::uint32_t request,
            std::uint32_t staleness = 0) {
    transport::Pull pull{.clock = Clock(clock),
                         .request = request,
                         .staleness = staleness,
                         .total = static_cast<std::uint32_t>(options_.elements.size())};
    for (std::uint32_t p = 0; p < options_.elements.size(); ++p)
      pull.entries.push_back({PartitionId(p), Version(0), 5});
    take(core->pull(sender(worker), pull, now));
  }
  void view(std::vector<std::pair<WorkerPhase, std::uint64_t>> phases) {
    std::vector<WorkerNews> news;
    for (std::uint32_t w = 0; w < phases.size(); ++w)
      news.push_back({WorkerId(w), Incarnation(w + 1), phases[w].first, Clock(phases[w].second)});
    take(core->view(news, WorkerId(0), now));
  }

  void finish_reads(bool ok = true, bool released = true) {
    for (const ReadPayload& read : std::exchange(reads, {}))
      take(core->read_done(read, ok, released, "gone", now));
  }
  // So much later; wakes the core when it asked to be woken by then.
  void pass(milliseconds time) {
    now += time;
    if (wake && *wake <= now) {
      wake.reset();
      take(core->tick(now));
    }
  }
  void finish_update() {
    REQUIRE(!updates.empty());
    take(core->apply_done(now));
  }
  // A whole step up to its ending.
  void step(std::uint32_t worker, std::uint64_t clock,
            transport::Ending ending = transport::Ending::kCommit, std::uint32_t samples = 8) {
    for (std::uint32_t p = 0; p < options_.elements.size(); ++p) push(worker, clock, p);
    finish_reads();
    end(worker, clock, ending, samples);
  }

  void take(const Effects& effects) {
    for (const Effect& effect : effects) {
      if (const auto* x = std::get_if<ReadPayload>(&effect)) reads.push_back(*x);
      if (const auto* x = std::get_if<SendTaken>(&effect)) taken.push_back(*x);
      if (const auto* x = std::get_if<SendCommitted>(&effect)) committed.push_back(*x);
      if (const auto* x = std::get_if<Apply>(&effect)) updates.push_back(*x);
      if (const auto* x = std::get_if<FoldLate>(&effect)) folds.push_back(*x);
      if (const auto* x = std::get_if<WakeAt>(&effect)) wake = x->at;
      if (const auto* x = std::get_if<AnswerPull>(&effect)) answers.push_back(*x);
      if (const auto* x = std::get_if<RepeatAnswer>(&effect)) repeated.push_back(*x);
      if (const auto* x = std::get_if<Refuse>(&effect)) refusals.push_back(x->text);
      if (const auto* x = std::get_if<Disconnect>(&effect)) disconnected.push_back(x->worker);
      if (const auto* x = std::get_if<TakeSnapshot>(&effect)) snapshots.push_back(*x);
      if (const auto* x = std::get_if<Fault>(&effect)) faults.push_back(x->reason);
      if (std::holds_alternative<PublishInitial>(effect)) ++published;
    }
  }

  std::unique_ptr<Consistency> core;
  std::vector<ReadPayload> reads;
  std::vector<SendTaken> taken;
  std::vector<SendCommitted> committed;
  std::vector<Apply> updates;
  std::vector<FoldLate> folds;
  std::optional<TimePoint> wake;
  TimePoint now;
  std::vector<AnswerPull> answers;
  std::vector<RepeatAnswer> repeated;
  std::vector<std::string> refusals, faults;
  std::vector<WorkerId> disconnected;
  std::vector<TakeSnapshot> snapshots;
  int published = 0;

 private:
  CoreOptions options_;
};

}  // namespace leeway::server
