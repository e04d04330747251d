#include "server/norm_exchange.h"

#include <doctest/doctest.h>

#include "tests/unit/server/core_fixture.h"

namespace leeway::server {
namespace {

constexpr std::uint32_t kTable = 3, kOwn = 5;  // tensors

NormSums some(double weights) {
  NormSums sums;
  sums.weights.add(weights);
  sums.changes.add(2 * weights);
  return sums;
}

// A server with two parts of a table that server.1 and server.2 share, and two of a tensor that
// nobody else has.
NormConfig two_tensors() {
  NormConfig config;
  config.tensors = {{TensorId(kTable), "table", {0, 2}, {ServerId(1), ServerId(2)}},
                    {TensorId(kOwn), "own", {1, 3}, {}}};
  config.servers = {{ServerId(1), Incarnation(11)}, {ServerId(2), Incarnation(12)}};
  config.patience = milliseconds(1000);
  return config;
}

transport::Norms norms(std::uint64_t clock, double weights, std::uint32_t tensor = kTable) {
  return {Clock(clock), {{TensorId(tensor), some(weights)}}};
}

struct Exchange {
  NormConfig config = two_tensors();
  NormExchange core{config, false};
  Effects effects;
  TimePoint now{};

  void sum(LocalPartition part, double weights) {
    core.part_summed(part, some(weights), now, effects);
  }
  void sum_all(double weights) {
    for (const LocalPartition part : {0, 1, 2, 3}) sum(part, weights);
  }
  // All of that kind since the last call for it.
  template <typename T>
  std::vector<T> take() {
    std::vector<T> taken;
    std::erase_if(effects, [&](const Effect& effect) {
      const auto* one = std::get_if<T>(&effect);
      if (one != nullptr) taken.push_back(*one);
      return one != nullptr;
    });
    return taken;
  }
};

}  // namespace

TEST_CASE("a tensor steps when all its parts are summed, a shared one when the others' are, too") {
  Exchange here;
  here.core.begin(Clock(7));
  here.sum(1, 1);
  CHECK(here.effects.empty());
  here.sum(3, 2);
  auto steps = here.take<StepTensor>();
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].parts == std::vector<LocalPartition>{1, 3});
  CHECK(steps[0].sums == some(3));
  here.sum(0, 4);
  CHECK(here.effects.empty());
  CHECK_FALSE(here.core.waiting());
  here.sum(2, 5);
  CHECK(here.core.waiting());
  const auto sent = here.take<SendNorms>();
  REQUIRE(sent.size() == 2);
  for (const SendNorms& message : sent) {
    CHECK(message.norms.clock == Clock(7));
    REQUIRE(message.norms.entries.size() == 1);
    CHECK(message.norms.entries[0].tensor == TensorId(kTable));
    CHECK(message.norms.entries[0].sums == some(9));
  }
  here.core.receive(ServerId(2), norms(7, 100), here.effects);
  CHECK(here.take<StepTensor>().empty());
  here.core.receive(ServerId(2), norms(7, 100), here.effects);  // twice is once
  here.core.receive(ServerId(1), norms(7, 1000), here.effects);
  steps = here.take<StepTensor>();
  REQUIRE(steps.size() == 1);
  CHECK(steps[0].sums == some(1109));
  CHECK_FALSE(here.core.waiting());
  CHECK(here.take<Ignore>().empty());
}

TEST_CASE("what a server that is ahead sends counts for its clock alone") {
  Exchange here;
  here.core.receive(ServerId(1), norms(4, 10), here.effects);  // before this one began it
  here.core.begin(Clock(4));
  here.core.receive(ServerId(2), norms(4, 20), here.effects);
  here.sum_all(1);
  auto steps = here.take<StepTensor>();
  REQUIRE(steps.size() == 2);
  CHECK(steps[0].sums == some(32));
  // The second pass runs here; server.1 is at the next gradient, clock 6.
  here.core.receive(ServerId(1), norms(6, 30), here.effects);
  here.core.end();
  here.core.receive(ServerId(2), norms(4, 20), here.effects);  // a repetition
  here.core.begin(Clock(6));
  here.sum_all(1);
  CHECK(here.core.waiting());
  here.core.receive(ServerId(2), norms(6, 40), here.effects);
  steps = here.take<StepTensor>();
  REQUIRE(steps.size() == 2);
  CHECK(steps[1].sums == some(72));
  CHECK(here.take<Ignore>().empty());
}

TEST_CASE("norms that cannot be are ignored with a line, and nothing piles up") {
  Exchange here;
  here.core.begin(Clock(4));
  here.core.receive(ServerId(1), norms(4, 1, kOwn), here.effects);
  here.core.receive(ServerId(1), norms(4, 1, 77), here.effects);
  here.core.receive(ServerId(1), norms(5, 1), here.effects);
  here.core.receive(ServerId(1), norms(6, 1), here.effects);
  const auto ignored = here.take<Ignore>();
  REQUIRE(ignored.size() == 3);
  CHECK(ignored[0].why.find("tensor 5, which the two do not share") != std::string::npos);
  CHECK(ignored[2].why.find("clock 6 from server.1, whose norms of clock 5") != std::string::npos);
  here.sum_all(1);
  CHECK(here.take<StepTensor>().size() == 1);
}

TEST_CASE("who lacks norms says whose, and gives up in the end") {
  Exchange here;
  here.core.begin(Clock(4));
  here.sum_all(1);
  here.core.receive(ServerId(2), norms(4, 1), here.effects);
  const auto wakes = here.take<WakeAt>();
  REQUIRE(wakes.size() == 1);
  CHECK(wakes[0].at == here.now + milliseconds(1000));
  CHECK_FALSE(here.core.waiting_since(here.now - milliseconds(1)));
  CHECK(here.core.waiting_since(here.now).value() ==
        "this server waits with the update of clock 4 for server.1 (its part of the norms of "
        "'table')");
  here.core.tick(here.now + milliseconds(999), here.effects);
  CHECK(here.take<Fault>().empty());
  here.core.tick(here.now + milliseconds(1000), here.effects);
  const auto faults = here.take<Fault>();
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].reason.find("clock 4 waited 1.0 s for server.1") != std::string::npos);
}

TEST_CASE("one tick is asked for at a time, however many updates there are") {
  Exchange here;
  std::size_t wakes = 0;
  for (std::uint64_t clock = 0; clock < 50; ++clock) {
    here.now += milliseconds(10);
    here.core.begin(Clock(clock));
    here.sum_all(1);
    for (const std::uint32_t server : {1, 2})
      here.core.receive(ServerId(server), norms(clock, 1), here.effects);
    here.core.end();
    wakes += here.take<WakeAt>().size();
  }
  CHECK(wakes == 1);
  here.core.begin(Clock(50));
  here.now += milliseconds(10);  // 510
  here.sum_all(1);
  here.core.tick(TimePoint{} + milliseconds(1010), here.effects);
  const auto again = here.take<WakeAt>();
  REQUIRE(again.size() == 1);
  CHECK(again[0].at == here.now + milliseconds(1000));
  CHECK(here.take<Fault>().empty());
}

namespace {

CoreOptions with_norms() {
  return {.per_clock = true,
          .workers = 2,
          .minimal_slabs = 2,
          .norms = two_tensors(),
          .elements = {4, 4, 4, 4}};
}

}  // namespace

TEST_CASE("norms of a stranger are ignored") {
  CoreFixture server(with_norms());
  for (const transport::Sender& sender : {transport::Sender{8, Incarnation(11), 1},
                                          {7, Incarnation(10), 1},
                                          {7, Incarnation(1), 0}}) {
    const Effects effects = server.core->norms(sender, norms(0, 1), server.now);
    REQUIRE(effects.size() == 1);
    CHECK(std::holds_alternative<Ignore>(effects[0]));
  }
}

TEST_CASE("a server that waits for norms holds, with what it waits for as applied") {
  CoreFixture server(with_norms());
  for (const std::uint32_t worker : {0, 1}) server.step(worker, 0);
  REQUIRE(server.updates.size() == 1);
  server.take(server.core->hold("000001", server.now));
  CHECK(server.core->held() == "");  // its first pass runs
  CHECK(server.core->applied().at(WorkerId(0)) == Clock(0));
  for (const LocalPartition part : {0, 1, 2, 3})
    server.take(server.core->part_summed(part, some(1), server.now));
  CHECK(server.core->held() == "000001");
  CHECK(server.core->applied().at(WorkerId(0)) == Clock(1));
  CHECK(server.core->waiting(server.now).at(0).find("server.1") != std::string::npos);
  server.take(
      server.core->cut("000001", {{WorkerId(0), Clock(1)}, {WorkerId(1), Clock(1)}}, server.now));
  for (const std::uint32_t other : {1, 2})
    server.take(server.core->norms({7, Incarnation(10 + other), other}, norms(0, 1), server.now));
  CHECK(server.snapshots.empty());
  server.finish_update();
  CHECK(server.snapshots.size() == 1);
  CHECK(server.core->applied().at(WorkerId(1)) == Clock(1));
}

}  // namespace leeway::server
