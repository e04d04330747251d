#include "worker/step_core.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <random>

namespace leeway::worker {
namespace {

using transport::Ending;

PartitionId part(std::uint32_t p) { return PartitionId(p); }
ServerId server(std::uint32_t s) { return ServerId(s); }

// Three servers: two partitions, one, none.
StepCore core_at(std::uint64_t clock = 0, Bound bound = Bound{2}) {
  return StepCore(
      {.shards = {{part(0), part(2)}, {part(1)}, {}}, .staleness = bound, .clock = Clock(clock)});
}

template <typename T>
std::vector<T> of(const Effects& effects) {
  std::vector<T> found;
  for (const Effect& e : effects)
    if (const T* effect = std::get_if<T>(&e)) found.push_back(*effect);
  return found;
}

transport::PushTaken took(std::uint64_t clock, std::vector<PartitionId> partitions) {
  return {Clock(clock), std::move(partitions)};
}

transport::PushTaken took_initial(std::vector<PartitionId> partitions) {
  return {transport::kInitialValues, std::move(partitions)};
}

transport::Pulled answer(const SendPull& pull, std::uint64_t slowest, std::uint64_t version) {
  transport::Pulled pulled{.clock = pull.clock,
                           .request = pull.request,
                           .slowest = Clock(slowest),
                           .total = static_cast<std::uint32_t>(pull.partitions.size())};
  for (const auto& held : pull.partitions)
    pulled.entries.push_back({held.partition, Version(version)});
  return pulled;
}

// Answers every pull; returns the effects of the last answer.
Effects answer_all(StepCore& core, const std::vector<SendPull>& pulls, std::uint64_t slowest,
                   std::uint64_t version) {
  Effects last;
  for (const SendPull& pull : pulls) {
    auto effects = core.pulled(pull.server, answer(pull, slowest, version));
    REQUIRE(effects);
    last = *effects;
  }
  return last;
}

Effects confirm_all(StepCore& core, std::uint64_t clock, Ending ending = Ending::kCommit) {
  Effects all;
  for (std::uint32_t s = 0; s < 3; ++s) {
    auto effects = core.committed(server(s), {Clock(clock), ending});
    REQUIRE(effects);
    all.insert(all.end(), effects->begin(), effects->end());
  }
  return all;
}

// Pushes all, has all taken, ends: the effects of the end.
Effects whole_step(StepCore& core) {
  const std::uint64_t clock = core.clock().value();
  REQUIRE(core.push({part(0), part(1), part(2)}, 8, false));
  REQUIRE(core.taken(server(0), took(clock, {part(0), part(2)})));
  REQUIRE(core.taken(server(1), took(clock, {part(1)})));
  auto effects = core.end(Ending::kCommit, 32, {});
  REQUIRE(effects);
  return *effects;
}

}  // namespace

TEST_CASE("a push goes to the servers of its partitions") {
  StepCore core = core_at(5);
  const auto effects = core.push({part(0), part(1), part(2)}, 8, false);
  REQUIRE(effects);
  const auto pushes = of<SendPush>(*effects);
  REQUIRE(pushes.size() == 2);
  CHECK(pushes[0].server == server(0));
  CHECK(pushes[0].partitions == std::vector{part(0), part(2)});
  CHECK(pushes[0].clock == Clock(5));
  CHECK(pushes[0].scale == 8);
  CHECK(pushes[1].server == server(1));
  CHECK(pushes[1].partitions == std::vector{part(1)});
}

TEST_CASE("COMMIT waits for every payload, then goes to all servers with the next PULL") {
  StepCore core = core_at();
  REQUIRE(core.push({part(0), part(1), part(2)}, 1, false));
  CHECK(core.taken(server(0), took(0, {part(0)})).value().size() == 1);
  auto early = core.end(Ending::kCommit, 32, {std::byte{7}}, 0.5f);
  REQUIRE(early);
  CHECK(early->empty());
  CHECK(core.waiting_for() == "server.0 has not taken 1 payloads of step 0");
  REQUIRE(core.taken(server(1), took(0, {part(1)})));
  const auto effects = core.taken(server(0), took(0, {part(2)}));
  REQUIRE(effects);

  const auto endings = of<SendEnding>(*effects);
  REQUIRE(endings.size() == 3);  // the server without partitions, too
  for (std::uint32_t s = 0; s < 3; ++s) {
    CHECK(endings[s].server == server(s));
    CHECK(endings[s].commit.clock == Clock(0));
    CHECK(endings[s].commit.samples == 32);
    CHECK(endings[s].commit.worker_state.size() == 1);
    CHECK(endings[s].commit.factor == 0.5f);
  }
  const auto pulls = of<SendPull>(*effects);
  REQUIRE(pulls.size() == 3);
  CHECK(pulls[2].partitions.empty());
  CHECK(pulls[0].clock == Clock(1));
  CHECK(pulls[0].staleness == 2);
  CHECK(core.clock() == Clock(1));
}

TEST_CASE(
    "an only server gets the COMMIT with the last push, and its word stands for the payloads") {
  StepCore core({.shards = {{part(0), part(1)}}, .staleness = Bound{0}, .clock = Clock(0)});
  REQUIRE(core.push({part(0)}, 1, false));
  REQUIRE(core.taken(server(0), took(0, {part(0)})));
  REQUIRE(core.push({part(1)}, 1, false));
  const auto ended = core.end(Ending::kCommit, 1, {});
  REQUIRE(ended);
  CHECK(of<SendEnding>(*ended).size() == 1);
  CHECK(of<SendPull>(*ended).size() == 1);
  CHECK(core.taken(server(0), took(0, {part(1)})).value().empty());  // late
  // The next push waits for the word, and so does its ending.
  CHECK(core.push({part(0), part(1)}, 1, false)->empty());
  CHECK(core.end(Ending::kCommit, 1, {})->empty());
  const auto confirmed = core.committed(server(0), {Clock(0), Ending::kCommit});
  REQUIRE(confirmed);
  REQUIRE(of<PayloadsTaken>(*confirmed).size() == 1);
  CHECK(of<PayloadsTaken>(*confirmed)[0].partitions == 1);
  CHECK(of<SendPush>(*confirmed).size() == 1);
  CHECK(of<SendEnding>(*confirmed).size() == 1);
}

TEST_CASE("an only server, too, gets ABANDON and INITIAL after the payloads were taken") {
  for (const Ending ending : {Ending::kAbandon, Ending::kInitial}) {
    StepCore core({.shards = {{part(0)}}, .staleness = Bound{0}, .clock = Clock(0)});
    REQUIRE(core.push({part(0)}, 1, ending == Ending::kInitial));
    CHECK(core.end(ending, 1, {})->empty());
    const auto answer = ending == Ending::kInitial ? took_initial({part(0)}) : took(0, {part(0)});
    CHECK(of<SendEnding>(core.taken(server(0), answer).value()).size() == 1);
  }
}

TEST_CASE("COMMIT of a step waits until all servers confirmed the one before") {
  StepCore core = core_at();
  REQUIRE(of<SendEnding>(whole_step(core)).size() == 3);
  CHECK(whole_step(core).empty());  // step 1 is taken, step 0 is not confirmed
  REQUIRE(core.committed(server(0), {Clock(0), Ending::kCommit}));
  REQUIRE(core.committed(server(0), {Clock(0), Ending::kCommit}));  // twice counts once
  REQUIRE(core.committed(server(2), {Clock(0), Ending::kCommit}));
  CHECK(core.waiting_for() == "server.1 has not confirmed step 0");
  const auto effects = core.committed(server(1), {Clock(0), Ending::kCommit});
  REQUIRE(effects);
  REQUIRE(of<EndingConfirmed>(*effects).size() == 1);
  const auto endings = of<SendEnding>(*effects);
  REQUIRE(endings.size() == 3);
  CHECK(endings[0].commit.clock == Clock(1));
}

TEST_CASE("a push waits for the server's word on the step before, server by server") {
  StepCore core = core_at();
  whole_step(core);
  REQUIRE(core.committed(server(1), {Clock(0), Ending::kCommit}));
  const auto now = of<SendPush>(core.push({part(0), part(1), part(2)}, 4, false).value());
  REQUIRE(now.size() == 1);
  CHECK(now[0].server == server(1));
  const auto held = of<SendPush>(core.committed(server(0), {Clock(0), Ending::kCommit}).value());
  REQUIRE(held.size() == 1);
  CHECK(held[0].partitions == std::vector{part(0), part(2)});
  CHECK(held[0].clock == Clock(1));
  CHECK(held[0].scale == 4);
  CHECK(core.committed(server(0), {Clock(0), Ending::kCommit}).value().empty());
}

TEST_CASE(
    "N4: ABANDON goes to every server, after what was pushed was taken, and no more is needed") {
  StepCore core = core_at();
  REQUIRE(core.push({part(1)}, 1, false));
  const auto early = core.end(Ending::kAbandon, 32, {});
  REQUIRE(early);
  CHECK(early->empty());
  const auto effects = core.taken(server(1), took(0, {part(1)}));
  REQUIRE(effects);
  const auto endings = of<SendEnding>(*effects);
  REQUIRE(endings.size() == 3);
  for (const SendEnding& e : endings) CHECK(e.commit.ending == Ending::kAbandon);
  CHECK(core.clock() == Clock(1));
  CHECK(of<EndingConfirmed>(confirm_all(core, 0, Ending::kAbandon)).size() == 1);
}

TEST_CASE("weights are ready when every server answered, with the largest staleness of them") {
  StepCore core = core_at(5);
  const auto pulls = of<SendPull>(core.pull_first().value());
  REQUIRE(pulls.size() == 3);
  REQUIRE(core.pulled(server(0), answer(pulls[0], 7, 3)).value().empty());
  REQUIRE(core.pulled(server(2), answer(pulls[2], 3, 0)).value().empty());
  CHECK(core.waiting_for().starts_with("server.1 has not answered the pull of step 5"));
  const auto ready = of<WeightsReady>(core.pulled(server(1), answer(pulls[1], 4, 1)).value());
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].clock == Clock(5));
  CHECK(ready[0].staleness == 2);
  CHECK(!ready[0].violation);
  CHECK(ready[0].changed.size() == 3);
  CHECK(core.waiting_for() == "");
}

TEST_CASE("weights say, by partition and server, how new they are") {
  StepCore core = core_at(5);
  const auto pulls = of<SendPull>(core.pull_first().value());
  REQUIRE(core.pulled(server(0), answer(pulls[0], 4, 3)));
  REQUIRE(core.pulled(server(2), answer(pulls[2], 9, 0)));
  transport::Pulled last = answer(pulls[1], 3, 2);
  last.bound = 4;
  const auto ready = of<WeightsReady>(core.pulled(server(1), last).value());
  REQUIRE(ready.size() == 1);
  CHECK(core.versions() == std::vector{Version(3), Version(2), Version(3)});
  CHECK(ready[0].by_server == std::vector<std::uint64_t>{1, 2, 0});
  CHECK(ready[0].bound == 4);
}

TEST_CASE("a pull of more than one cut is an error where one cut is promised") {
  for (const std::uint64_t second : {3, 4}) {
    StepCore core({.shards = {{part(0), part(2)}, {part(1)}, {}}, .consistent = true});
    const auto pulls = of<SendPull>(core.pull_first().value());
    REQUIRE(core.pulled(server(0), answer(pulls[0], 0, 3)));
    REQUIRE(core.pulled(server(2), answer(pulls[2], 0, 0)));
    const auto last = core.pulled(server(1), answer(pulls[1], 0, second));
    CHECK(last.has_value() == (second == 3));
    if (!last) CHECK(last.error().message.find("more than one cut") != std::string::npos);
  }
}

TEST_CASE("staleness beyond the bound is a violation; without a bound nothing is") {
  for (const auto& [bound, violation] :
       {std::pair{Bound{1}, true}, {Bound{2}, false}, {Bound{Bound::kInfinite}, false}}) {
    StepCore core = core_at(5, bound);
    const auto pulls = of<SendPull>(core.pull_first().value());
    const auto ready = of<WeightsReady>(answer_all(core, pulls, 3, 1));
    REQUIRE(ready.size() == 1);
    CHECK(ready[0].violation == violation);
  }
  StepCore wide = core_at(0, Bound{std::uint64_t{1} << 40});
  CHECK(of<SendPull>(wide.pull_first().value())[0].staleness == transport::kUnboundedStaleness - 1);
  StepCore unbounded = core_at(0, Bound{Bound::kInfinite});
  CHECK(of<SendPull>(unbounded.pull_first().value())[0].staleness ==
        transport::kUnboundedStaleness);
}

TEST_CASE("an answer in several messages counts when all its entries are there, each once") {
  StepCore core = core_at();
  const auto pulls = of<SendPull>(core.pull_first().value());
  REQUIRE(core.pulled(server(1), answer(pulls[1], 0, 1)));
  REQUIRE(core.pulled(server(2), answer(pulls[2], 0, 1)));
  transport::Pulled half = answer(pulls[0], 0, 1);
  half.entries.pop_back();
  CHECK(core.pulled(server(0), half).value().empty());
  CHECK(core.pulled(server(0), half).value().empty());  // the same entry again
  half.entries = {{part(2), Version(1)}};
  CHECK(of<WeightsReady>(core.pulled(server(0), half).value()).size() == 1);
}

TEST_CASE("the next pull says what is there, and unchanged partitions are not news") {
  StepCore core = core_at();
  answer_all(core, of<SendPull>(core.pull_first().value()), 0, 4);
  const auto pulls = of<SendPull>(whole_step(core));
  REQUIRE(pulls.size() == 3);
  CHECK(pulls[0].partitions[1].partition == part(2));
  CHECK(pulls[0].partitions[1].have == Version(4));
  transport::Pulled nothing_new = answer(pulls[0], 1, 4);
  transport::Pulled only_changed = answer(pulls[1], 1, 5);
  REQUIRE(core.pulled(server(0), nothing_new));
  REQUIRE(core.pulled(server(2), answer(pulls[2], 1, 0)));
  const auto ready = of<WeightsReady>(core.pulled(server(1), only_changed).value());
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].changed == std::vector{part(1)});
}

TEST_CASE("a server may answer with the changed partitions alone") {
  StepCore core = core_at();
  const auto pulls = of<SendPull>(core.pull_first().value());
  REQUIRE(core.pulled(server(1), answer(pulls[1], 0, 1)));
  REQUIRE(core.pulled(server(2), answer(pulls[2], 0, 1)));
  transport::Pulled none{.clock = Clock(0), .request = pulls[0].request};
  CHECK(of<WeightsReady>(core.pulled(server(0), none).value()).size() == 1);
}

TEST_CASE("initial values are pushed, ended and confirmed before step 0 may end") {
  StepCore core = core_at();
  const auto pushes = of<SendPush>(core.push({part(0), part(1), part(2)}, 1, true).value());
  REQUIRE(pushes.size() == 2);
  CHECK(pushes[0].initial);
  REQUIRE(core.end(Ending::kInitial, 0, {}).value().empty());
  const auto pulls = of<SendPull>(core.pull_first().value());
  REQUIRE(pulls.size() == 3);
  REQUIRE(core.taken(server(1), took_initial({part(1)})));
  const auto effects = core.taken(server(0), took_initial({part(2), part(0)})).value();
  REQUIRE(of<SendEnding>(effects).size() == 3);
  CHECK(of<SendEnding>(effects)[0].commit.ending == Ending::kInitial);
  CHECK(of<SendPull>(effects).empty());
  CHECK(core.clock() == Clock(0));

  CHECK(of<WeightsReady>(answer_all(core, pulls, 0, 1)).size() == 1);
  CHECK(whole_step(core).empty());  // step 0, with the initial values unconfirmed
  REQUIRE(core.taken(server(1),
                     took_initial({part(1)})));  // a late second answer of the initial values
  const auto confirmed = confirm_all(core, 0, Ending::kInitial);
  CHECK(of<EndingConfirmed>(confirmed)[0].ending == Ending::kInitial);
  REQUIRE(of<SendEnding>(confirmed).size() == 3);
  CHECK(of<SendEnding>(confirmed)[0].commit.ending == Ending::kCommit);
  CHECK(confirm_all(core, 0, Ending::kInitial).empty());  // late
  CHECK(of<EndingConfirmed>(confirm_all(core, 0)).size() == 1);
}

TEST_CASE("a second answer of the initial values counts for nothing, also not for step 0") {
  StepCore core = core_at();
  REQUIRE(core.push({part(0), part(1), part(2)}, 1, true));
  REQUIRE(core.end(Ending::kInitial, 0, {}));
  const auto pulls = of<SendPull>(core.pull_first().value());
  REQUIRE(core.taken(server(1), took_initial({part(1)})));
  REQUIRE(core.taken(server(0), took_initial({part(2), part(0)})));
  confirm_all(core, 0, Ending::kInitial);
  answer_all(core, pulls, 0, 1);
  REQUIRE(core.push({part(0), part(1), part(2)}, 1, false));
  REQUIRE(core.end(Ending::kCommit, 1, {}).value().empty());
  CHECK(core.taken(server(1), took_initial({part(1)})).value().empty());
  CHECK(core.taken(server(0), took_initial({part(2), part(0)})).value().empty());
  REQUIRE(core.taken(server(1), took(0, {part(1)})));
  CHECK(of<SendEnding>(core.taken(server(0), took(0, {part(2), part(0)})).value()).size() == 3);
}

TEST_CASE("the final pull has bound 0 and waits for the one on its way") {
  StepCore core = core_at();
  answer_all(core, of<SendPull>(core.pull_first().value()), 0, 1);
  const auto pulls = of<SendPull>(whole_step(core));
  CHECK(core.pull_final().value().empty());
  const auto effects = answer_all(core, pulls, 0, 2);
  REQUIRE(of<WeightsReady>(effects).size() == 1);
  CHECK(!of<WeightsReady>(effects)[0].final);
  const auto finals = of<SendPull>(effects);
  REQUIRE(finals.size() == 3);
  CHECK(finals[0].staleness == 0);
  CHECK(finals[0].clock == Clock(1));
  CHECK(finals[0].request != pulls[0].request);
  const auto ready = of<WeightsReady>(answer_all(core, finals, 1, 3));
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].final);
  CHECK(!ready[0].violation);
}

TEST_CASE("the final pull waits for a step that is not yet sent") {
  StepCore core = core_at();
  answer_all(core, of<SendPull>(core.pull_first().value()), 0, 1);
  REQUIRE(core.push({part(0), part(1), part(2)}, 1, false));
  REQUIRE(core.end(Ending::kCommit, 1, {}));
  CHECK(core.pull_final().value().empty());
  REQUIRE(core.taken(server(0), took(0, {part(0), part(2)})));
  const auto effects = core.taken(server(1), took(0, {part(1)})).value();
  const auto pulls = of<SendPull>(effects);
  REQUIRE(pulls.size() == 3);
  CHECK(pulls[0].staleness == 2);
  CHECK(of<SendPull>(answer_all(core, pulls, 1, 1)).size() == 3);
}

TEST_CASE("late answers change nothing") {
  StepCore core = core_at(7);
  const auto first = of<SendPull>(core.pull_first().value());
  answer_all(core, first, 7, 1);
  CHECK(core.pulled(server(0), answer(first[0], 7, 9)).value().empty());
  CHECK(core.committed(server(0), {Clock(6), Ending::kCommit}).value().empty());
  CHECK(core.taken(server(0), took(6, {part(0)})).value().empty());
  const auto pulls = of<SendPull>(whole_step(core));
  CHECK(pulls[0].partitions[0].have == Version(1));
  CHECK(core.pulled(server(0), answer(first[0], 7, 9)).value().empty());
}

TEST_CASE("answers that no right server gives are errors that name it, and change nothing") {
  StepCore core = core_at(7);
  const auto pulls = of<SendPull>(core.pull_first().value());
  REQUIRE(core.push({part(0)}, 1, false));
  const auto bad = [](const Result<Effects>& effects, const char* text) {
    REQUIRE_MESSAGE(!effects, text);
    CHECK(effects.error().code == Code::kInternal);
    CHECK_MESSAGE(effects.error().message.starts_with(text), effects.error().message);
  };
  bad(core.taken(server(1), took(7, {part(0)})), "server.1 took partition 0");
  bad(core.taken(server(0), took(7, {part(99)})), "server.0 took partition 99");
  bad(core.taken(server(0), took(7, {part(2)})), "server.0 took partition 2");
  bad(core.taken(server(0), took(8, {part(0)})), "server.0 took a push of step 8");
  bad(core.taken(server(9), took(7, {part(0)})), "server.9");
  bad(core.committed(server(1), {Clock(7), Ending::kCommit}), "server.1 confirmed step 7");
  bad(core.committed(server(5), {Clock(6), Ending::kCommit}), "server.5");
  bad(core.pulled(server(4), answer(pulls[0], 7, 1)), "server.4");

  transport::Pulled wrong = answer(pulls[0], 7, 1);
  wrong.request += 1;
  bad(core.pulled(server(0), wrong), "server.0 answered pull 2");
  wrong = answer(pulls[0], 7, 1);
  wrong.clock = Clock(6);
  bad(core.pulled(server(0), wrong), "server.0 answered the pull of step 7 for step 6");
  wrong = answer(pulls[0], 7, 1);
  wrong.total = 3;
  bad(core.pulled(server(0), wrong), "server.0 announced 3");
  wrong = answer(pulls[0], 7, 1);
  wrong.total = 1;
  bad(core.pulled(server(0), wrong), "server.0 sent more");
  bad(core.pulled(server(1), answer(pulls[0], 7, 1)), "server.1");

  answer_all(core, pulls, 7, 5);
  REQUIRE(core.push({part(1), part(2)}, 1, false));
  REQUIRE(core.taken(server(0), took(7, {part(0), part(2)})));
  REQUIRE(core.taken(server(1), took(7, {part(1)})));
  const auto next = of<SendPull>(core.end(Ending::kCommit, 1, {}).value());
  REQUIRE(next.size() == 3);
  bad(core.pulled(server(0), answer(next[0], 8, 4)), "server.0 went back from version 5 to 4");
  bad(core.committed(server(0), {Clock(7), Ending::kAbandon}), "server.0 confirmed another ending");
}

TEST_CASE("the program's own mistakes are refused") {
  StepCore core = core_at();
  CHECK(!core.push({part(7)}, 1, false));
  REQUIRE(core.push({part(0)}, 1, false));
  CHECK(!core.push({part(0)}, 1, false));
  CHECK(!core.end(Ending::kCommit, 1, {}));
  REQUIRE(core.push({part(1), part(2)}, 1, false));
  REQUIRE(core.end(Ending::kCommit, 1, {}));
  CHECK(!core.end(Ending::kCommit, 1, {}));
  CHECK(!core.push({part(0)}, 1, false));
}

// Servers answer in any order: whatever it is, no server ever gets COMMIT c + 1 before all
// confirmed c, no COMMIT goes out with a payload untaken, and every step comes to its end.
TEST_CASE("any order of answers keeps steps atomic") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    StepCore core = core_at();
    struct Answer {
      ServerId from;
      std::variant<transport::PushTaken, transport::Committed, transport::Pulled> message;
    };
    std::deque<Answer> on_the_wire;
    std::vector<std::uint64_t> confirmed(3, 0), told(3, 0);
    std::size_t untaken = 0;
    std::optional<Clock> weights;

    const auto carry_out = [&](const Result<Effects>& effects) {
      REQUIRE_MESSAGE(effects, effects.error().message);
      for (const Effect& e : *effects) {
        if (const auto* push = std::get_if<SendPush>(&e))
          for (PartitionId p : push->partitions) {
            CHECK(confirmed[push->server.value()] == push->clock.value());
            on_the_wire.push_back({push->server, took(push->clock.value(), {p})});
            ++untaken;
          }
        if (const auto* end = std::get_if<SendEnding>(&e)) {
          CHECK(untaken == 0);
          for (std::uint64_t c : confirmed) CHECK(c >= end->commit.clock.value());
          CHECK(told[end->server.value()]++ == end->commit.clock.value());
          on_the_wire.push_back(
              {end->server, transport::Committed{end->commit.clock, end->commit.ending}});
        }
        if (const auto* pull = std::get_if<SendPull>(&e))
          on_the_wire.push_back(
              {pull->server, answer(*pull, pull->clock.value(), pull->clock.value() + 1)});
        if (const auto* ready = std::get_if<WeightsReady>(&e)) weights = ready->clock;
      }
    };
    carry_out(core.pull_first());
    std::uint64_t steps = 0;
    while (steps < 20 || !on_the_wire.empty()) {
      if (weights == Clock(steps) && steps < 20) {
        const bool skip = random() % 4 == 0;
        carry_out(core.push({part(0), part(1)}, 1, false));
        if (!skip) carry_out(core.push({part(2)}, 1, false));
        carry_out(core.end(skip ? Ending::kAbandon : Ending::kCommit, 1, {}));
        ++steps;
      }
      REQUIRE(!on_the_wire.empty());
      const std::size_t pick = random() % on_the_wire.size();
      const Answer a = on_the_wire[pick];
      if (random() % 8 != 0) on_the_wire.erase(on_the_wire.begin() + static_cast<long>(pick));
      if (const auto* t = std::get_if<transport::PushTaken>(&a.message)) {
        const auto effects = core.taken(a.from, *t);
        if (effects && !of<PayloadsTaken>(*effects).empty()) --untaken;
        carry_out(effects);
      } else if (const auto* c = std::get_if<transport::Committed>(&a.message)) {
        auto& count = confirmed[a.from.value()];
        count = std::max(count, c->clock.value() + 1);
        carry_out(core.committed(a.from, *c));
      } else {
        carry_out(core.pulled(a.from, std::get<transport::Pulled>(a.message)));
      }
    }
    CHECK(core.clock() == Clock(20));
    CHECK(core.waiting_for() == "");
  }
}

}  // namespace leeway::worker
