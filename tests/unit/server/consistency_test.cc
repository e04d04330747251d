#include "server/consistency.h"

#include <algorithm>
#include <map>

#include "tests/unit/server/core_fixture.h"

namespace leeway::server {

using transport::Ending;

TEST_CASE("C1: with one worker and no staleness every pull holds every step") {
  CoreFixture s({});
  s.pull(0, 0, 1);
  CHECK(s.answers.size() == 1);
  for (std::uint64_t clock = 0; clock < 5; ++clock) {
    s.step(0, clock);
    s.pull(0, clock + 1, static_cast<std::uint32_t>(clock) + 2);
    REQUIRE(s.updates.size() == clock + 1);
    CHECK(s.updates.back().sums[0].weight == 1.0f);
    // With the update, which goes before it partition by partition, and not earlier.
    CHECK(s.answers.size() == clock + 2);
    s.finish_update();
    CHECK(s.answers.back().slowest == Clock(clock + 1));
  }
  CHECK(s.refusals.empty());
}

TEST_CASE("a step is read when admitted, taken when read, and applied when committed") {
  CoreFixture s({});
  s.push(0, 0, 1);
  REQUIRE(s.reads.size() == 1);
  CHECK(s.reads[0].partition == 1);
  CHECK(s.reads[0].bytes == 8);
  CHECK(s.taken.empty());
  s.finish_reads();
  CHECK(s.taken.size() == 1);
  s.push(0, 0, 0);
  s.finish_reads();
  CHECK(s.updates.empty());
  s.end(0, 0);
  CHECK(s.committed.size() == 1);
  REQUIRE(s.updates.size() == 1);
  CHECK(s.updates[0].sums[0].contributions[0].scales == std::vector<float>{4, 4});
}

TEST_CASE("steps that wait for an update go into the next one together, each on its own") {
  CoreFixture s({.staleness = Bound{9}, .workers = 2});
  s.step(0, 0);
  s.step(1, 0);
  s.step(0, 1);
  s.push(1, 1, 0);
  s.finish_reads();
  s.end(1, 1, Ending::kAbandon);
  s.step(1, 2);
  REQUIRE(s.updates.size() == 1);
  s.pull(0, 2, 1, 9);
  CHECK(s.answers.empty());
  s.finish_update();
  REQUIRE(s.updates.size() == 2);
  std::vector<StepId> order;
  for (const Sum& sum : s.updates[1].sums) {
    REQUIRE(sum.contributions.size() == 1);
    CHECK(sum.weight == 1.0f);
    order.push_back(sum.contributions[0].step);
  }
  CHECK(order == std::vector<StepId>{
                     {WorkerId(1), Clock(0)}, {WorkerId(0), Clock(1)}, {WorkerId(1), Clock(2)}});
  REQUIRE(s.answers.size() == 1);
  CHECK(s.answers[0].slowest == Clock(2));
  CHECK(s.core->applied().at(WorkerId(1)) == Clock(0));  // not before it is done
  s.finish_update();
  CHECK(s.core->applied().at(WorkerId(0)) == Clock(2));
  CHECK(s.core->applied().at(WorkerId(1)) == Clock(3));
}

TEST_CASE("an only server takes a COMMIT before the payloads, and counts it when they are there") {
  for (const bool first : {false, true})
    for (const bool dies : {false, true}) {
      CAPTURE(first);
      CAPTURE(dies);
      CoreFixture s({.workers = 2, .only_server = true});
      if (!first) s.push(0, 0, 0);
      s.end(0, 0);
      s.end(0, 0);  // again
      s.push(0, 0, 1);
      if (first) s.push(0, 0, 0);
      CHECK(s.committed.empty());
      if (!dies) {
        s.finish_reads();
        CHECK(s.taken.empty());  // COMMITTED says it
        CHECK(s.committed.size() == 1);
        CHECK(s.updates.size() == 1);
        CHECK(s.refusals.empty());
        continue;
      }
      // What was said of a dead worker stays true, whatever its transfers still bring.
      s.view({{WorkerPhase::kResolving, 0}, {WorkerPhase::kLive, 0}});
      CHECK(s.core->resolving().at(WorkerId(0)) == Clock(0));
      s.finish_reads();
      CHECK(s.core->resolving().at(WorkerId(0)) == Clock(0));
      s.view({{WorkerPhase::kDead, 0}, {WorkerPhase::kLive, 0}});
      CHECK(s.updates.empty());
      s.step(1, 0);
      CHECK(s.updates.size() == 1);
    }
}

TEST_CASE("a pull is answered in the order in which it asks") {
  CoreFixture s({.elements = {4, 4, 4}});
  transport::Pull pull{.request = 1, .total = 3};
  for (const std::uint32_t p : {2, 0}) pull.entries.push_back({.partition = PartitionId(p)});
  s.take(s.core->pull(s.sender(0), pull, s.now));
  s.take(s.core->pull(s.sender(0), pull, s.now));  // the same message again
  CHECK(s.answers.empty());
  pull.entries = {{.partition = PartitionId(1)}};
  s.take(s.core->pull(s.sender(0), pull, s.now));
  REQUIRE(s.answers.size() == 1);
  std::vector<LocalPartition> order;
  for (const AnswerPull::Entry& entry : s.answers[0].entries) order.push_back(entry.partition);
  CHECK(order == std::vector<LocalPartition>{2, 0, 1});
}

TEST_CASE("the gate holds to the bound, per push") {
  CoreFixture s({.staleness = Bound{2}, .workers = 2});
  for (std::uint64_t clock = 0; clock < 3; ++clock) {
    s.pull(0, clock, static_cast<std::uint32_t>(clock) + 1, 2);
    CHECK(s.answers.size() == clock + 1);
    s.step(0, clock);
    s.finish_update();
  }
  s.pull(0, 3, 4, 2);  // two ahead at most, and worker 1 has done nothing
  CHECK(s.answers.size() == 3);
  CHECK(s.core->waiting(TimePoint())[0].find("worker.1 (applied 0 of 1") != std::string::npos);
  s.step(1, 0);
  s.finish_update();
  REQUIRE(s.answers.size() == 4);
  CHECK(s.answers[3].slowest == Clock(1));
  SUBCASE("a tighter bound may be asked for, a looser one is refused") {
    s.pull(1, 1, 1, 0);
    CHECK(s.answers.size() == 5);
    s.pull(0, 3, 5, 3);
    CHECK(s.refusals.size() == 1);
  }
}

TEST_CASE("per clock: sums are in worker order whatever came first, and averaged") {
  const std::vector<std::uint32_t> orders[] = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0}};
  for (const auto& order : orders) {
    CoreFixture s({.per_clock = true, .workers = 3});
    for (const std::uint32_t worker : order) {
      CHECK(s.updates.empty());
      s.step(worker, 0);
    }
    REQUIRE(s.updates.size() == 1);
    REQUIRE(s.updates[0].sums[0].contributions.size() == 3);
    for (std::uint32_t w = 0; w < 3; ++w)
      CHECK(s.updates[0].sums[0].contributions[w].step.worker == WorkerId(w));
    CHECK(s.updates[0].sums[0].weight == 1.0f / 3);
  }
}

TEST_CASE("N4: an abandoned step counts as one step and changes nothing") {
  for (const bool per_clock : {false, true}) {
    CoreFixture s({.per_clock = per_clock});
    s.push(0, 0, 0);  // the second partition never comes: the worker saw the infinity
    s.finish_reads();
    s.end(0, 0, Ending::kAbandon);
    CHECK(s.updates.empty());
    s.pull(0, 1, 1);
    REQUIRE(s.answers.size() == 1);
    CHECK(s.answers[0].slowest == Clock(1));
    s.end(0, 0, Ending::kAbandon);  // again
    CHECK(s.core->applied().at(WorkerId(0)) == Clock(1));
    CHECK(s.committed.size() == 2);
  }
}

TEST_CASE("a worker that ends step after step without weights for them is refused") {
  for (const bool per_clock : {false, true}) {
    CoreFixture s({.per_clock = per_clock, .workers = 2});
    s.take(s.core->hold("a", s.now));  // nothing is applied
    for (std::uint64_t clock = 0; clock < 1000; ++clock) s.end(0, clock, Ending::kAbandon);
    CHECK(s.core->workers().at(WorkerId(0)).steps.size() == 4 + 16);
    CHECK(s.core->workers().at(WorkerId(0)).barred);
    REQUIRE(!s.refusals.empty());
    CHECK(s.refusals[0].find("the last weights that it got are for step 0") != std::string::npos);
  }
}

TEST_CASE("no bound lets a worker that abandons its steps fill the memory") {
  constexpr std::size_t kMost = 4 + 16;
  CoreFixture s({.per_clock = true, .staleness = Bound{Bound::kInfinite}, .workers = 2});
  std::uint64_t clock = 0;
  for (; clock < 1000 && s.answers.size() == clock; ++clock) {
    s.end(0, clock, Ending::kAbandon);
    s.pull(0, clock + 1, static_cast<std::uint32_t>(clock) + 1, transport::kUnboundedStaleness);
  }
  CHECK(s.core->workers().at(WorkerId(0)).steps.size() == kMost);
  CHECK(s.refusals.empty());
  s.now += milliseconds(1);
  REQUIRE(s.core->waiting(s.now).size() == 1);
  CHECK(s.core->waiting(s.now)[0] ==
        "worker.0 waits to start step 20 for the update of clock 0, beyond which it has ended 20 "
        "steps");
  // It goes on with the others.
  s.end(1, 0, Ending::kAbandon);
  CHECK(s.answers.size() == clock);
}

TEST_CASE("a worker may push step after step without weights where they are applied") {
  CoreFixture s({});
  for (std::uint64_t clock = 0; clock < 100; ++clock) {
    s.step(0, clock);
    s.finish_update();
  }
  CHECK(s.refusals.empty());
  CHECK(s.core->applied().at(WorkerId(0)) == Clock(100));
}

TEST_CASE("a clock that waits asks to be woken once, however often it is looked at") {
  CoreFixture s({.per_clock = true,
                 .quorum = 1,
                 .grace = {.wait = milliseconds(100)},
                 .staleness = Bound{1},
                 .workers = 2});
  s.step(0, 0);
  REQUIRE(s.wake.has_value());
  for (int i = 0; i < 3; ++i) CHECK(s.core->tick(s.now + milliseconds(10 * i)).empty());
  s.pass(milliseconds(100));
  CHECK(s.updates.size() == 1);
}

TEST_CASE("what comes twice is answered twice and counts once") {
  CoreFixture s({});
  s.push(0, 0, 0);
  s.push(0, 0, 0);  // while it is read
  CHECK(s.reads.size() == 1);
  s.finish_reads();
  s.push(0, 0, 0);  // after it was taken
  CHECK(s.reads.empty());
  CHECK(s.taken.size() == 2);
  s.push(0, 0, 1);
  s.finish_reads();
  s.end(0, 0);
  s.end(0, 0);
  s.push(0, 0, 1);  // after the step
  CHECK(s.committed.size() == 2);
  CHECK(s.taken.size() == 4);
  CHECK(s.updates.size() == 1);
  s.finish_update();
  s.pull(0, 1, 1);
  s.pull(0, 1, 1);
  CHECK(s.answers.size() == 1);
  CHECK(s.repeated.size() == 1);
}

TEST_CASE("what does not belong here is refused by name and changes nothing") {
  CoreFixture s({.workers = 2});
  const auto refused = [&](const transport::Sender& sender, const transport::Push& push) {
    const std::size_t before = s.refusals.size();
    s.take(s.core->push(sender, push, s.now));
    return s.refusals.size() == before + 1 && s.reads.empty();
  };
  const transport::Push good = s.make_push(0, 0);
  CHECK(refused({8, Incarnation(1), 0}, good));   // M8: another job
  CHECK(refused({7, Incarnation(99), 0}, good));  // a stale process
  CHECK(refused({7, Incarnation(1), 5}, good));   // nobody
  SUBCASE("unknown partition") {
    transport::Push bad = good;
    bad.entries[0].partition = PartitionId(77);
    CHECK(refused(s.sender(0), bad));
  }
  SUBCASE("wrong size") {
    transport::Push bad = good;
    bad.entries[0].bytes = 6;
    CHECK(refused(s.sender(0), bad));
  }
  SUBCASE("scale that is no number") {
    transport::Push bad = good;
    bad.entries[0].scale = 0;
    CHECK(refused(s.sender(0), bad));
  }
  SUBCASE("a step that cannot be yet") { CHECK(refused(s.sender(0), s.make_push(1, 0))); }
  SUBCASE("a commit without the gradients") {
    s.end(0, 0);
    CHECK(s.refusals.size() == 4);
    CHECK(s.committed.empty());
  }
  // Whoever broke the protocol is not listened to again; the others are.
  CHECK(refused(s.sender(0), good));
  s.step(1, 0);
  CHECK(s.updates.size() == 1);
}

TEST_CASE("a payload in another codec, of another size or damaged is refused in words") {
  const auto refusal = [](GradientCodec codec, auto spoil) {
    CoreFixture s({.codec = codec, .elements = {40}});
    transport::Push push = s.make_push(0, 0);
    push.payload.resize(codec.bytes(40));
    push.entries[0].inlined = true;
    spoil(push);
    s.take(s.core->push(s.sender(0), push, TimePoint()));
    return s.refusals.empty() ? std::string() : s.refusals[0];
  };
  const auto nothing = [](transport::Push&) {};
  const auto last_byte = [](transport::Push& push) { push.payload.back() = std::byte{0xFF}; };
  CHECK(refusal({Codec::kFp8E4m3}, nothing) == "");
  CHECK(refusal({Codec::kInt8}, last_byte) ==
        "partition 0: the scale of elements 32 and on is not a number");
  CHECK(refusal({Codec::kFp8E5m2}, [](transport::Push& push) {
          push.entries[0].codec = Codec::kF16;
        }) == "partition 0 comes in codec f16, gradients must be fp8_e5m2");
  CHECK(refusal({Codec::kFp8E5m2}, [](transport::Push& push) {
          push.entries[0].bytes -= 1;
          push.payload.pop_back();
        }) == "partition 0 comes with 41 bytes, it has 40 elements = 42 bytes");
  const GradientCodec two{Codec::kTopK, 0.05};
  CHECK(refusal(two, nothing) == "partition 0: index 0 comes after 0");
  CHECK(refusal(two, [](transport::Push& push) { push.payload[4] = std::byte{40}; }) ==
        "partition 0: index 40 is beyond its 40 elements");
  CHECK(refusal(two, [](transport::Push& push) { push.payload[4] = std::byte{39}; }) == "");
}

TEST_CASE("C2: nobody gets weights before the initial values, and then everybody the same") {
  CoreFixture s({.workers = 2, .initialized = false});
  s.view({{WorkerPhase::kLive, 0}, {WorkerPhase::kLive, 0}});
  s.pull(1, 0, 1);
  CHECK(s.answers.empty());
  for (std::uint32_t p = 0; p < 2; ++p)
    s.take(s.core->push(s.sender(0), s.make_push(0, p, true), s.now));
  s.finish_reads();
  CHECK(s.published == 0);
  s.end(0, 0, Ending::kInitial);
  CHECK(s.published == 1);
  CHECK(s.answers.empty());
  s.take(s.core->initial_published(s.now));
  CHECK(s.answers.size() == 1);
  CHECK(s.committed.size() == 1);
  CHECK(s.core->applied().at(WorkerId(0)) == Clock(0));  // it is no step
}

TEST_CASE("another worker gives the initial values when the first dies in the middle") {
  CoreFixture s({.workers = 2, .initialized = false});
  s.view({{WorkerPhase::kLive, 0}, {WorkerPhase::kLive, 0}});
  s.take(s.core->push(s.sender(0), s.make_push(0, 0, true), s.now));
  REQUIRE(s.reads.size() == 1);
  // Worker 1's come before its turn: they wait, and also for the read that is still on its way.
  for (std::uint32_t p = 0; p < 2; ++p)
    s.take(s.core->push(s.sender(1), s.make_push(0, p, true), s.now));
  CHECK(s.reads.size() == 1);
  const std::vector<WorkerNews> news{{WorkerId(0), Incarnation(1), WorkerPhase::kDead, Clock(0)},
                                     {WorkerId(1), Incarnation(2), WorkerPhase::kLive, Clock(0)}};
  s.take(s.core->view(news, WorkerId(1), s.now));
  CHECK(s.reads.size() == 1);
  s.finish_reads(false);
  CHECK(s.reads.size() == 2);
  s.finish_reads();
  s.end(1, 0, Ending::kInitial);
  CHECK(s.published == 1);
}

TEST_CASE("with as few slabs as allowed, fast workers wait and nobody is locked out") {
  CoreFixture s({.per_clock = true, .staleness = Bound{3}, .workers = 2, .slabs = 2});
  s.step(0, 0);
  s.push(0, 1, 0);  // one slab is left, and worker 1 has not come with step 0
  CHECK(s.reads.empty());
  CHECK(s.core->waiting(TimePoint::max()).size() == 1);
  s.step(1, 0);
  REQUIRE(s.updates.size() == 1);
  s.finish_update();
  CHECK(s.reads.size() == 1);  // now step 1 of worker 0
}

TEST_CASE("hold and cut: the snapshot is at the named clocks, wherever the server was") {
  CoreFixture s({.staleness = Bound{4}, .workers = 2});
  s.step(0, 0);
  s.finish_update();
  s.step(0, 1);
  s.take(s.core->hold("a", s.now));
  CHECK(s.core->held().empty());  // an update runs
  s.finish_update();
  CHECK(s.core->held() == "a");
  s.step(0, 2);
  s.step(1, 0);
  CHECK(s.updates.size() == 2);  // none starts while it holds
  CHECK(s.core->applied().at(WorkerId(0)) == Clock(2));
  // Another server has step 0 of worker 1 already, and not more of worker 0.
  s.take(s.core->cut("a", {{WorkerId(0), Clock(2)}, {WorkerId(1), Clock(1)}}, s.now));
  REQUIRE(s.updates.size() == 3);
  CHECK(s.updates.back().sums[0].contributions[0].step.worker == WorkerId(1));
  CHECK(s.snapshots.empty());
  s.finish_update();
  REQUIRE(s.snapshots.size() == 1);
  CHECK(s.snapshots[0].workers.at(WorkerId(0)).clock == Clock(2));
  CHECK(s.snapshots[0].workers.at(WorkerId(1)).clock == Clock(1));
  CHECK(s.updates.size() == 4);  // and training goes on
}

TEST_CASE("a checkpoint that is given up lets updates go on") {
  CoreFixture s({});
  s.take(s.core->hold("a", s.now));
  s.step(0, 0);
  CHECK(s.updates.empty());
  s.take(s.core->release(s.now));
  CHECK(s.updates.size() == 1);
}

TEST_CASE("M9: a worker that dies at any point of a step leaves all of it or nothing, everywhere") {
  // The step's messages in order, for three servers: pushes, then commits. It dies after `n` of
  // them.
  for (const bool per_clock : {false, true})
    for (const Ending ending : {Ending::kCommit, Ending::kAbandon})
      for (int n = 0; n <= 9; ++n) {
        CAPTURE(per_clock);
        CAPTURE(n);
        std::vector<CoreFixture> servers;
        for (int i = 0; i < 3; ++i)
          servers.emplace_back(
              CoreOptions{.per_clock = per_clock, .staleness = Bound{1}, .workers = 2});
        int left = n;
        for (std::uint32_t p = 0; p < 2; ++p)
          for (CoreFixture& s : servers)
            if (left-- > 0) s.push(0, 0, p);
        for (CoreFixture& s : servers) s.finish_reads();
        for (CoreFixture& s : servers)
          if (left-- > 0) s.end(0, 0, ending);
        std::uint64_t final_clock = 0;
        for (CoreFixture& s : servers) {
          s.view({{WorkerPhase::kResolving, 0}, {WorkerPhase::kLive, 0}});
          final_clock = std::max(final_clock, s.core->resolving().at(WorkerId(0)).value());
        }
        CHECK(final_clock == (n >= 7 && ending == Ending::kCommit ? 1 : 0));
        for (CoreFixture& s : servers) {
          s.view({{WorkerPhase::kDead, final_clock}, {WorkerPhase::kLive, 0}});
          s.step(1, 0);
          std::size_t counted = 0;
          for (std::size_t i = 0; i < s.updates.size(); ++i) {
            for (const Sum& sum : s.updates[i].sums)
              counted += static_cast<std::size_t>(
                  std::ranges::count(sum.contributions, WorkerId(0),
                                     [](const Contribution& c) { return c.step.worker; }));
            s.finish_update();
          }
          CHECK(counted == final_clock);
          CHECK(s.core->applied().at(WorkerId(0)) == Clock(final_clock));
          CHECK(s.core->applied().at(WorkerId(1)) == Clock(1));
          CHECK(s.faults.empty());
          CHECK(s.disconnected.size() == 1);
          // The living one goes on, with every slab there is.
          s.pull(1, 1, 1, 1);
          CHECK(s.answers.size() == 1);
          s.push(0, 1, 0);
          CHECK(s.refusals.size() == 1);
        }
      }
}

TEST_CASE("a slab whose transfer still runs is used again only when it ended") {
  CoreFixture s({.workers = 2, .slabs = 1});
  s.push(0, 0, 0);
  s.push(1, 0, 0);
  REQUIRE(s.reads.size() == 1);
  s.view({{WorkerPhase::kDead, 0}, {WorkerPhase::kLive, 0}});
  CHECK(s.reads.size() == 1);
  SUBCASE("and given back") {
    s.finish_reads(false);
    CHECK(s.reads.size() == 1);
    CHECK(s.faults.empty());
  }
  SUBCASE("and never when the provider keeps it") {
    s.take(s.core->read_done(s.reads[0], false, false, "timed out", s.now));
    CHECK(s.reads.size() == 1);
    CHECK(s.faults.size() == 1);  // it was the only one
  }
}

TEST_CASE("a failed transfer bars its worker and hinders nobody else") {
  CoreFixture s({.staleness = Bound{Bound::kInfinite}, .workers = 2});
  s.push(0, 0, 0);
  s.finish_reads(false);
  CHECK(s.refusals.size() == 1);
  s.end(0, 0);
  CHECK(s.refusals.size() == 2);
  s.step(1, 0);
  s.finish_update();
  s.pull(1, 1, 1, transport::kUnboundedStaleness);
  CHECK(s.answers.size() == 1);
}

TEST_CASE("M9: a slab that the fabric keeps goes with its worker and costs nobody else one") {
  for (const bool per_clock : {false, true})
    for (const bool dead_first : {false, true}) {
      CAPTURE(per_clock);
      CAPTURE(dead_first);
      CoreFixture server({.per_clock = per_clock, .workers = 3, .slabs = 3, .minimal_slabs = 3});
      using enum WorkerPhase;
      server.push(2, 0, 0);
      server.push(2, 0, 1);
      server.push(1, 0, 0);
      if (dead_first) server.view({{kLive, 0}, {kDead, 0}, {kDead, 0}});
      server.finish_reads(false, false);
      server.view({{kLive, 0}, {kDead, 0}, {kDead, 0}});
      for (std::uint64_t clock = 0; clock < 3; ++clock) {
        server.step(0, clock);
        server.finish_update();
      }
      CHECK(server.faults.empty());
      CHECK(server.core->applied().at(WorkerId(0)) == Clock(3));
    }
}

TEST_CASE("without a slab for the workers that are left the job ends with the reason") {
  CoreFixture server({.workers = 2, .slabs = 1});
  server.push(1, 0, 0);
  server.finish_reads(false, false);
  REQUIRE(server.faults.size() == 1);
  CHECK(server.faults[0].find("slabs are still held") != std::string::npos);

  CoreFixture alone({.workers = 1, .slabs = 1});
  alone.push(0, 0, 0);
  alone.finish_reads(false, false);
  CHECK(alone.faults.empty());  // nobody is left to need one
}

TEST_CASE("N6: partitions without elements and shards without partitions take steps too") {
  for (const std::vector<std::uint64_t>& elements :
       {std::vector<std::uint64_t>{}, std::vector<std::uint64_t>{0}}) {
    CoreFixture s({.elements = elements});
    s.end(0, 0);
    s.pull(0, 1, 1);
    CHECK(s.answers.size() == 1);
    CHECK(s.committed.size() == 1);
    CHECK(s.refusals.empty());
  }
}

TEST_CASE("a worker that finished is not waited for") {
  for (const bool per_clock : {false, true}) {
    CoreFixture s({.per_clock = per_clock, .workers = 2});
    s.step(0, 0);
    s.step(1, 0);
    for (std::size_t i = 0; i < s.updates.size(); ++i) s.finish_update();
    s.view({{WorkerPhase::kFinished, 1}, {WorkerPhase::kLive, 0}});
    s.step(1, 1);
    s.finish_update();
    s.pull(1, 2, 1);
    CHECK(s.answers.size() == 1);
    CHECK(s.updates.back().sums[0].weight == 1.0f);
  }
}

TEST_CASE("a contribution says how many updates came since the weights it was computed on") {
  CoreFixture s({.staleness = Bound{2}, .workers = 2});
  s.pull(0, 0, 1, 2);
  s.pull(1, 0, 1, 2);
  s.step(0, 0);
  REQUIRE(s.updates.size() == 1);
  CHECK(s.updates[0].sums[0].contributions[0].staleness == 0);
  s.pull(0, 1, 2, 2);  // answered with what the running update leaves
  s.step(0, 1);
  s.step(1, 0);
  s.finish_update();
  REQUIRE(s.updates.size() == 2);
  REQUIRE(s.updates[1].sums.size() == 2);
  CHECK(s.updates[1].sums[0].contributions[0].staleness == 0);
  CHECK(s.updates[1].sums[1].contributions[0].staleness == 2);
}

// --- quorum --------------------------------------------------------------------------------------

namespace {

std::vector<std::pair<std::uint32_t, std::uint64_t>> held_by(const Sum& sum) {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> steps;
  for (const Contribution& contribution : sum.contributions)
    steps.emplace_back(contribution.step.worker.value(), contribution.step.clock.value());
  return steps;
}
using Steps = std::vector<std::pair<std::uint32_t, std::uint64_t>>;

}  // namespace

TEST_CASE("a clock is applied when its quorum has committed and the grace time is over") {
  CoreFixture s({.per_clock = true, .quorum = 2, .grace = {milliseconds(100)}, .workers = 3});
  for (std::uint32_t w = 0; w < 3; ++w) s.pull(w, 0, 1);
  s.step(2, 0);
  CHECK(!s.wake);
  s.pass(milliseconds(1000));
  s.step(0, 0);
  REQUIRE(s.wake);
  CHECK(*s.wake == s.now + milliseconds(100));
  s.pass(milliseconds(99));
  CHECK(s.updates.empty());
  s.pull(0, 1, 2);
  CHECK(s.answers.size() == 3);
  s.pass(milliseconds(1));
  REQUIRE(s.updates.size() == 1);
  CHECK(held_by(s.updates[0].sums[0]) == Steps{{0, 0}, {2, 0}});
  CHECK(s.answers.size() == 4);  // with what the update brings
  CHECK(s.answers.back().slowest == Clock(1));

  // What comes later is part of the next clock, once.
  s.step(1, 0);
  s.finish_update();
  s.step(0, 1);
  s.step(2, 1);
  s.pass(milliseconds(100));
  REQUIRE(s.updates.size() == 2);
  CHECK(held_by(s.updates[1].sums[0]) == Steps{{0, 1}, {1, 0}, {2, 1}});
  CHECK(s.updates[1].sums[0].contributions[1].staleness == 1);
  s.finish_update();
  CHECK(s.core->applied().at(WorkerId(1)) == Clock(1));
}

TEST_CASE("nobody waits for the grace time when everybody is there") {
  CoreFixture s({.per_clock = true, .quorum = 1, .grace = {milliseconds(100)}, .workers = 2});
  s.step(0, 0);
  CHECK(s.updates.empty());
  s.step(1, 0);
  CHECK(s.updates.size() == 1);
}

TEST_CASE("the steps of a clock weigh as many samples as they have") {
  CoreFixture s({.per_clock = true, .workers = 3});
  const auto clock = [&](std::uint64_t c, std::array<std::uint32_t, 3> samples) {
    for (std::uint32_t w = 0; w < 3; ++w) s.step(w, c, transport::Ending::kCommit, samples[w]);
    const Sum sum = s.updates.back().sums[0];
    s.finish_update();
    return sum;
  };
  Sum sum = clock(0, {32, 32, 32});  // the bits of an average
  CHECK(sum.weight == 1.0f / 3);
  for (const Contribution& contribution : sum.contributions) CHECK(contribution.factor == 1);
  sum = clock(1, {32, 48, 16});
  CHECK(sum.weight == 1.0f / 6);
  CHECK(sum.contributions[0].factor == 2);
  CHECK(sum.contributions[1].factor == 3);
  CHECK(sum.contributions[2].factor == 1);
  sum = clock(2, {0, 0, 0});  // a program that does not tell
  CHECK(sum.weight == 1.0f / 3);
}

TEST_CASE("late steps give their slabs back when somebody waits for one") {
  CoreFixture s({.per_clock = true,
                 .quorum = 2,
                 .staleness = Bound{9},
                 .workers = 3,
                 .slabs = 3,
                 .minimal_slabs = 3});
  for (std::uint64_t c = 0; c < 3; ++c) {
    s.step(0, c);
    s.step(1, c);
    s.finish_update();
  }
  for (std::uint64_t c = 0; c < 3; ++c) s.step(2, c, transport::Ending::kCommit, 8 + 8 * c);
  CHECK(s.folds.empty());
  s.push(0, 3, 0);  // no slab is left
  CHECK(s.reads.empty());
  REQUIRE(s.folds.size() == 1);
  CHECK(s.folds[0].first);
  REQUIRE(s.folds[0].contributions.size() == 3);
  CHECK(s.folds[0].contributions[1].factor == 16);
  s.take(s.core->apply_done(s.now));
  CHECK(s.core->applied().at(WorkerId(2)) == Clock(3));  // nothing takes them back
  CHECK(s.reads.size() == 1);
  s.step(0, 3);
  s.step(1, 3);
  REQUIRE(s.updates.size() == 4);
  const Sum& sum = s.updates[3].sums[0];
  CHECK(held_by(sum) == Steps{{0, 3}, {1, 3}});
  CHECK(sum.late == 1.0f / 8);    // of samples: it holds 8 + 16 + 24 of them
  CHECK(sum.weight == 1.0f / 8);  // 48 + 8 + 8 samples are 8 times 8
}

TEST_CASE("with a slab for each worker, nobody waits for a late one, wherever it is in its step") {
  CoreFixture s({.per_clock = true,
                 .quorum = 3,
                 .staleness = Bound{0},
                 .workers = 4,
                 .slabs = 4,
                 .minimal_slabs = 4});
  std::uint32_t requests = 0;
  const auto others_go_on = [&](std::uint64_t c) {
    const std::size_t answered = s.answers.size();
    for (std::uint32_t w = 0; w < 3; ++w) s.pull(w, c, ++requests);
    CHECK(s.answers.size() == answered + 3);
    for (std::uint32_t w = 0; w < 3; ++w) s.push(w, c, 0);
    if (!s.folds.empty()) {
      s.folds.clear();
      s.finish_update();
    }
    CHECK(s.reads.size() >= 3);
    s.finish_reads();
    const std::size_t updates = s.updates.size();
    for (std::uint32_t w = 0; w < 3; ++w) s.step(w, c);
    CHECK(s.updates.size() == updates + 1);
    s.finish_update();
  };
  others_go_on(0);
  others_go_on(1);
  s.push(3, 0, 0);  // half of it is there
  for (std::uint64_t c = 2; c < 5; ++c) others_go_on(c);
  s.step(3, 0);
  SUBCASE("between two steps") {}
  SUBCASE("in the next one, its last waits for an update") { s.push(3, 1, 0); }
  for (std::uint64_t c = 5; c < 8; ++c) others_go_on(c);
}

TEST_CASE("adaptive grace waits for whom it is worth it") {
  CoreFixture s({.per_clock = true,
                 .quorum = 2,
                 .grace = {.automatic = true},
                 .staleness = Bound{0},
                 .workers = 3});
  // Worker 0 and 1 take 100 ms; worker 2 as long as said.
  const auto clock = [&](std::uint64_t c, milliseconds third) {
    for (std::uint32_t w = 0; w < 3; ++w) s.pull(w, c, static_cast<std::uint32_t>(c) + 1);
    const TimePoint began = s.now;
    s.pass(milliseconds(100));
    s.step(0, c);
    s.pull(0, c + 1, static_cast<std::uint32_t>(c) + 2);
    s.step(1, c);
    s.pull(1, c + 1, static_cast<std::uint32_t>(c) + 2);
    const std::size_t before = s.updates.size();
    const std::optional<TimePoint> wake = std::exchange(s.wake, std::nullopt);
    s.now = began + third;
    s.step(2, c);
    if (s.updates.size() == before) s.take(s.core->tick(s.now));
    s.finish_update();
    return wake ? *wake - began - milliseconds(100) : Duration();
  };
  CHECK(clock(0, milliseconds(100)) == Duration());  // nothing is known yet
  // Two workers of 8 samples in 100 ms wait; 8 samples are worth 4 of theirs: 4 / (16 / 100) ms.
  CHECK(clock(1, milliseconds(110)) == milliseconds(25));
  CHECK(clock(2, milliseconds(400)) == milliseconds(25));
  // Its pace is about 176 ms now: it cannot be there within 25 ms.
  CHECK(clock(3, milliseconds(100)) == Duration());
}

TEST_CASE("members that leave a clock of a quorum") {
  CoreFixture s({.per_clock = true, .quorum = 2, .staleness = Bound{9}, .workers = 3});
  using P = WorkerPhase;
  SUBCASE("dead before it commits: fewer are needed") {
    s.step(0, 0);
    s.push(1, 0, 0);
    s.view({{P::kLive, 0}, {P::kResolving, 0}, {P::kResolving, 0}});
    CHECK(s.updates.empty());  // their steps may still be settled
    s.view({{P::kLive, 0}, {P::kDead, 0}, {P::kDead, 0}});
    REQUIRE(s.updates.size() == 1);
    CHECK(held_by(s.updates[0].sums[0]) == Steps{{0, 0}});
  }
  SUBCASE("dead after it committed: its step counts") {
    s.step(0, 0);
    s.view({{P::kDead, 1}, {P::kLive, 0}, {P::kLive, 0}});
    CHECK(s.updates.empty());
    s.step(1, 0);
    CHECK(s.updates.empty());  // two of those who live
    s.step(2, 0);
    REQUIRE(s.updates.size() == 1);
    CHECK(held_by(s.updates[0].sums[0]) == Steps{{0, 0}, {1, 0}, {2, 0}});
  }
  SUBCASE("finished with a late step: it is applied") {
    s.step(0, 0);
    s.step(1, 0);
    s.finish_update();
    s.step(2, 0);
    s.view({{P::kFinished, 1}, {P::kFinished, 1}, {P::kFinished, 1}});
    REQUIRE(s.updates.size() == 2);
    CHECK(held_by(s.updates[1].sums[0]) == Steps{{2, 0}});
  }
  SUBCASE("those in front finish: the clock falls back to who is left") {
    for (std::uint64_t c = 0; c < 3; ++c) {
      s.step(0, c);
      s.step(1, c);
      s.finish_update();
    }
    s.step(2, 0);
    s.view({{P::kFinished, 3}, {P::kFinished, 3}, {P::kLive, 0}});
    REQUIRE(s.updates.size() == 4);
    s.finish_update();
    for (std::uint64_t c = 1; c < 3; ++c) {
      s.step(2, c);
      REQUIRE(s.updates.size() == 4 + c);  // each at once
      s.finish_update();
    }
  }
}

TEST_CASE("a cut takes the steps that it names from a clock, whoever else is there") {
  CoreFixture s({.per_clock = true, .quorum = 2, .grace = {milliseconds(50)}, .workers = 3});
  s.take(s.core->hold("a", s.now));
  s.step(0, 0);
  s.step(1, 0);
  s.pass(milliseconds(50));
  CHECK(s.updates.empty());
  // Another server has applied steps of workers 0 and 2.
  s.take(s.core->cut("a", {{WorkerId(0), Clock(1)}, {WorkerId(2), Clock(1)}}, s.now));
  CHECK(s.updates.empty());
  s.step(2, 0);
  REQUIRE(s.updates.size() == 1);
  CHECK(held_by(s.updates[0].sums[0]) == Steps{{0, 0}, {2, 0}});
  s.finish_update();
  REQUIRE(s.snapshots.size() == 1);
  CHECK(s.snapshots[0].workers.at(WorkerId(1)).clock == Clock(0));
  s.take(s.core->release(s.now));
  s.step(0, 1);
  s.step(2, 1);
  s.pass(milliseconds(50));
  REQUIRE(s.updates.size() == 2);
  CHECK(held_by(s.updates[1].sums[0]) == Steps{{0, 1}, {1, 0}, {2, 1}});
}

TEST_CASE("staleness = auto chooses each worker's bound by when the slowest one will commit") {
  bool per_clock = false;
  SUBCASE("per_push") {}
  SUBCASE("per_clock") { per_clock = true; }
  CoreFixture s({.per_clock = per_clock, .staleness = {6, 1}, .workers = 2, .slabs = 20});
  // Worker 0 takes 100 ms for a step, worker 1 takes 350 ms.
  std::vector<std::uint64_t> done(2), answered(2, 0);
  std::vector<TimePoint> began(2);
  std::vector<std::uint64_t> bounds;
  std::uint64_t furthest = 0;
  for (std::uint32_t w = 0; w < 2; ++w) s.pull(w, 0, 1, 6);
  Duration waited{};
  for (int ms = 0; ms < 7000; ms += 10) {
    s.now = TimePoint(milliseconds(ms));
    for (const AnswerPull& answer : std::exchange(s.answers, {})) {
      const std::uint32_t w = answer.worker.value();
      CHECK(answer.bound >= 1);
      CHECK(answer.bound <= 6);
      ++answered[w];
      began[w] = s.now;
      if (w == 0) bounds.push_back(answer.bound);
    }
    for (std::uint32_t w = 0; w < 2; ++w) {
      const bool computes = answered[w] > done[w];
      if (w == 0 && !computes && ms > 2000) waited += milliseconds(10);
      if (!computes || s.now - began[w] < milliseconds(w == 0 ? 100 : 350)) continue;
      s.step(w, done[w]++);
      s.pull(w, done[w], static_cast<std::uint32_t>(done[w]) + 1, 6);
      furthest = std::max(furthest, done[0] - std::min(done[0], done[1]));
      while (!s.updates.empty()) {
        s.updates.erase(s.updates.begin());
        s.take(s.core->apply_done(s.now));
      }
    }
  }
  CHECK(std::ranges::find(bounds, 1) != bounds.end());
  CHECK(*std::ranges::max_element(bounds) > 1);
  CHECK(furthest <= 7);
  CHECK(waited > Duration());
  CHECK(done[1] >= 19);  // the slow one never waits
}

TEST_CASE("C5: with s = 2 the others go on as soon as the slowest worker is declared dead") {
  CoreOptions options{.staleness = Bound{2}, .workers = 3, .slabs = 12, .minimal_slabs = 3};
  SUBCASE("per_push") {}
  SUBCASE("per_clock") { options.per_clock = true; }
  SUBCASE("a quorum of all") {
    options.per_clock = true;
    options.quorum = 3;
  }
  CoreFixture s(options);
  std::vector<std::uint64_t> clock(3);
  for (std::uint32_t w = 0; w < 3; ++w) s.pull(w, 0, 1, 2);
  // Workers 0 and 1 do a step whenever they may.
  const auto run = [&](std::uint64_t most) {
    while (!s.answers.empty() || !s.updates.empty()) {
      for (const Apply& update : std::exchange(s.updates, {})) {
        (void)update;
        s.take(s.core->apply_done(s.now));
      }
      for (const AnswerPull& answer : std::exchange(s.answers, {})) {
        const std::uint32_t w = answer.worker.value();
        if (w == 2 || clock[w] == most) continue;
        s.step(w, clock[w]++);
        s.pull(w, clock[w], static_cast<std::uint32_t>(clock[w]) + 1, 2);
      }
    }
  };
  run(20);
  CHECK(clock[0] == 3);  // step 3 needs the first of worker 2
  CHECK(clock[1] == 3);
  s.push(2, 0, 0);
  const auto live = WorkerPhase::kLive;
  s.view({{live, 0}, {live, 0}, {WorkerPhase::kResolving, 0}});
  run(20);
  CHECK(clock[0] == (options.per_clock ? 3 : 20));  // a clock may still get its last step
  s.view({{live, 0}, {live, 0}, {WorkerPhase::kDead, 0}});
  run(20);
  CHECK(clock[0] == 20);
  CHECK(clock[1] == 20);
}

TEST_CASE("a step counts by its COMMIT's factor, on the server that missed the COMMIT too") {
  for (const bool per_clock : {false, true}) {
    CAPTURE(per_clock);
    std::vector<CoreFixture> servers;
    for (int i = 0; i < 2; ++i)
      servers.emplace_back(CoreOptions{.per_clock = per_clock, .workers = 2});
    for (CoreFixture& s : servers) {
      for (std::uint32_t p = 0; p < 2; ++p) s.push(0, 0, p);
      s.finish_reads();
    }
    servers[0].take(servers[0].core->end_step(CoreFixture::sender(0),
                                              {.clock = Clock(0), .samples = 1, .factor = 0.25f},
                                              servers[0].now));
    Clock final_clock;
    float final_factor = 1;
    for (CoreFixture& s : servers) {
      s.view({{WorkerPhase::kResolving, 0}, {WorkerPhase::kLive, 0}});
      if (s.core->resolving().at(WorkerId(0)) <= final_clock) continue;
      final_clock = s.core->resolving().at(WorkerId(0));
      final_factor = s.core->last_factors().at(WorkerId(0));
    }
    CHECK(final_factor == 0.25f);
    for (CoreFixture& s : servers) {
      const std::vector<WorkerNews> news{
          {WorkerId(0), Incarnation(1), WorkerPhase::kDead, final_clock, final_factor},
          {WorkerId(1), Incarnation(2), WorkerPhase::kLive, Clock(0)}};
      s.take(s.core->view(news, WorkerId(0), s.now));
      s.step(1, 0, transport::Ending::kCommit, 1);
      std::vector<float> factors;  // of worker 0, then of worker 1
      for (std::size_t i = 0; i < s.updates.size(); ++i) {
        for (const Sum& sum : s.updates[i].sums)
          for (const Contribution& c : sum.contributions) factors.push_back(c.factor);
        s.finish_update();
      }
      CHECK(factors == std::vector<float>{0.25f, 1.0f});
    }
  }
}

TEST_CASE("a worker that has finished is disconnected: nothing is written to where it was") {
  CoreFixture s({.staleness = Bound{4}, .workers = 2});
  s.pull(0, 0, 1);
  s.step(1, 0);
  s.view({{WorkerPhase::kLive, 0}, {WorkerPhase::kFinished, 1}});
  REQUIRE(s.disconnected.size() == 1);
  CHECK(s.disconnected[0] == WorkerId(1));
  s.view({{WorkerPhase::kLive, 0}, {WorkerPhase::kFinished, 1}});
  CHECK(s.disconnected.size() == 1);
}

TEST_CASE("C5 a joiner holds back the clocks that it may belong to, and then belongs to them") {
  CoreFixture s({.per_clock = true, .staleness = Bound{2}, .workers = 3, .slabs = 9});
  const auto news = [&](WorkerPhase phase, std::uint64_t first) {
    std::vector<WorkerNews> all = {{WorkerId(0), Incarnation(1)},
                                   {WorkerId(1), Incarnation(2)},
                                   {WorkerId(2), Incarnation(3), WorkerPhase::kDead, Clock(0)}};
    all.push_back({.id = WorkerId(2),
                   .incarnation = Incarnation(9),
                   .phase = phase,
                   .first_clock = Clock(first)});
    s.take(s.core->view(all, std::nullopt, s.now));
  };
  s.step(0, 0);
  s.step(1, 0);
  CHECK(s.updates.empty());  // worker 2 is missing
  news(WorkerPhase::kJoining, 0);
  s.finish_update();  // clock 0 goes on without it
  CHECK(s.core->joining().at(WorkerId(2)) == Clock(1));
  s.step(0, 1);
  s.step(1, 1);
  CHECK(s.updates.size() == 1);
  news(WorkerPhase::kLive, 2);  // another server was further
  REQUIRE(s.updates.size() == 2);
  CHECK(s.updates[1].sums[0].contributions.size() == 2);
  s.finish_update();
  s.step(0, 2);
  s.step(1, 2);
  CHECK(s.updates.size() == 2);
  for (std::uint32_t p = 0; p < 2; ++p)
    s.take(s.core->push({7, Incarnation(9), 2}, s.make_push(2, p), s.now));
  s.finish_reads();
  s.take(s.core->end_step({7, Incarnation(9), 2}, {.clock = Clock(2), .samples = 8}, s.now));
  REQUIRE(s.updates.size() == 3);
  CHECK(s.updates[2].sums[0].contributions.size() == 3);
  CHECK(s.refusals.empty());
}

TEST_CASE("a joiner that the scheduler names no more holds nobody back") {
  CoreFixture s({.per_clock = true, .workers = 1});
  std::vector<WorkerNews> all = {{WorkerId(0), Incarnation(1)}};
  all.push_back({.id = WorkerId(1), .incarnation = Incarnation(9), .phase = WorkerPhase::kJoining});
  s.take(s.core->view(all, std::nullopt, s.now));
  CHECK(s.core->joining().at(WorkerId(1)) == Clock(0));
  s.step(0, 0);
  CHECK(s.updates.empty());
  all.pop_back();
  s.take(s.core->view(all, std::nullopt, s.now));
  CHECK(s.updates.size() == 1);
}

TEST_CASE("while the job is paused nobody gets weights") {
  CoreFixture s({.workers = 1});
  s.take(s.core->pause(true, s.now));
  s.pull(0, 0, 1);
  CHECK(s.answers.empty());
  CHECK(s.core->waiting(s.now).at(0).find("min_workers") != std::string::npos);
  s.take(s.core->pause(false, s.now));
  CHECK(s.answers.size() == 1);
}

}  // namespace leeway::server
