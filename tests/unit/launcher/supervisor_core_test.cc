#include "scheduler/launcher/supervisor_core.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>

namespace leeway::launcher {
namespace {

constexpr Member kScheduler{};
Member server(int id) { return {Role::kServer, id}; }
Member worker(int id) { return {Role::kWorker, id}; }
ProcessEnd exited(int code) { return {.by_signal = false, .value = code}; }
ProcessEnd killed(int signal) { return {.by_signal = true, .value = signal}; }

// A job of 2 servers and 3 workers whose events a test scripts; time passes only when told to.
struct Script {
  explicit Script(SupervisorCore::Config config = {.servers = 2, .workers = 3})
      : core(std::move(config), now) {
    take(core.scheduler_listens(now));
  }

  void take(const Effects& more) {
    effects.insert(effects.end(), more.begin(), more.end());
    for (const Effect& effect : more)
      if (effect.kind == Effect::Kind::kSay || effect.kind == Effect::Kind::kWarn)
        said += effect.text + "\n";
  }
  void pass(int ms) {
    now += milliseconds(ms);
    take(core.tick(now));
  }
  void end(Member member, ProcessEnd how, const std::string& words = "") {
    take(core.ended(now, member, how, words));
  }
  void status(Phase phase, const std::string& reason = "", std::vector<int> finished = {},
              std::map<int, std::string> others = {}) {
    JobSnapshot snapshot{.asked_at = now, .phase = phase, .reason = reason};
    for (int i = 0; i < 3; ++i) {
      const bool done = std::count(finished.begin(), finished.end(), i) != 0;
      snapshot.workers.push_back({.member = worker(i),
                                  .state = others.contains(i) ? others.at(i)
                                           : done             ? "FINISHED"
                                                              : "LIVE",
                                  .worker = WorkerFigures{.clock = 100 + i}});
    }
    take(core.status(now, snapshot));
  }
  // How many of the effects so far are of this kind, for this member where one is given.
  int count(Effect::Kind kind, std::optional<Member> member = {}, int signal = 0) const {
    return static_cast<int>(
        std::count_if(effects.begin(), effects.end(), [&](const Effect& effect) {
          return effect.kind == kind && (!member || effect.member == *member) &&
                 (signal == 0 || effect.signal == signal);
        }));
  }
  const Effect& told() const {
    const auto it = std::find_if(effects.rbegin(), effects.rend(), [](const Effect& effect) {
      return effect.kind == Effect::Kind::kTellLost;
    });
    REQUIRE(it != effects.rend());
    return *it;
  }
  // A deadline that has passed without tick() moving it would make the shell spin.
  void no_spinning() { CHECK(core.next_deadline() > now); }

  TimePoint now{std::chrono::hours(1)};
  SupervisorCore core;
  Effects effects;
  std::string said;
};

void end_well(Script& job) {
  for (int i = 0; i < 3; ++i) {
    job.status(Phase::kRunning, "", {0, 1, 2});
    job.end(worker(i), exited(0));
  }
  job.status(Phase::kDone, "", {0, 1, 2});
  for (int i = 0; i < 2; ++i) job.end(server(i), exited(0));
  job.pass(10);
  job.status(Phase::kDone, "", {0, 1, 2});
}

}  // namespace

TEST_CASE("M7: a job whose members all end well is ok, and its scheduler is sent home at once") {
  Script job;
  CHECK(job.count(Effect::Kind::kStartMembers) == 1);
  end_well(job);
  CHECK(job.count(Effect::Kind::kStopJob) == 1);
  CHECK(!job.core.over());
  job.end(kScheduler, exited(0));
  CHECK(job.core.over());
  CHECK(job.core.ok());
  CHECK(job.count(Effect::Kind::kSignal) == 0);
  CHECK(job.count(Effect::Kind::kTellLost) == 0);
}

TEST_CASE("a server may end before the news that the job is done has come") {
  Script job;
  job.status(Phase::kRunning, "", {0, 1, 2});
  for (int i = 0; i < 3; ++i) job.end(worker(i), exited(0));
  job.end(server(0), exited(0));
  job.end(server(1), exited(0));
  job.pass(10);
  job.status(Phase::kDone, "", {0, 1, 2});
  CHECK(job.core.ok());
  job.pass(10);
  job.status(Phase::kDone, "", {0, 1, 2});
  job.end(kScheduler, exited(0));
  CHECK(job.core.ok());
}

TEST_CASE("M9: a worker that was killed is reported and the job stays ok") {
  for (int signal : {SIGKILL, SIGTERM, SIGHUP}) {
    Script job;
    job.status(Phase::kRunning);
    job.end(worker(1), killed(signal));
    CHECK(job.told().member == worker(1));
    CHECK(!job.told().fails_job);
    CHECK(job.said.find("worker.1 was killed by SIG") != std::string::npos);
    job.status(Phase::kRunning, "", {0, 2});
    job.end(worker(0), exited(0));
    job.end(worker(2), exited(0));
    job.status(Phase::kDone, "", {0, 2});
    job.end(server(0), exited(0));
    job.end(server(1), exited(0));
    job.end(kScheduler, exited(0));
    CHECK(job.core.ok());
    CHECK(job.core.ends().at(worker(1)).code() == -signal);
  }
}

TEST_CASE("M9: a worker that was declared dead and then ends is lost, however it ends") {
  for (const char* state : {"DEAD", "RESOLVING"}) {
    for (ProcessEnd how : {exited(1), exited(0), killed(SIGSEGV)}) {
      Script job;
      job.status(Phase::kRunning, "", {}, {{0, state}});
      job.end(worker(0), how, "worker 0 was declared dead");
      CHECK(job.count(Effect::Kind::kTellLost) == 0);
      CHECK(job.said.find("worker.0 " + to_string(how)) != std::string::npos);
      CHECK(job.said.find("declared dead") != std::string::npos);
      job.status(Phase::kRunning, "", {1, 2}, {{0, "DEAD"}});
      job.end(worker(1), exited(0));
      job.end(worker(2), exited(0));
      job.status(Phase::kDone, "", {1, 2}, {{0, "DEAD"}});
      job.end(server(0), exited(0));
      job.end(server(1), exited(0));
      job.pass(5000);
      job.end(kScheduler, exited(0));
      CHECK(job.core.ok());
      CHECK(job.core.ends().at(worker(0)).code() == how.code());
    }
  }
}

TEST_CASE("a worker that was declared dead is nobody who finished when the last one is killed") {
  Script job;
  job.status(Phase::kRunning, "", {}, {{0, "DEAD"}});
  job.end(worker(0), exited(1));
  job.end(worker(1), killed(SIGKILL));
  job.end(worker(2), killed(SIGKILL));
  job.status(Phase::kFailed, "no worker is left");
  REQUIRE(job.core.failure());
  CHECK(job.core.failure()->restartable);
}

TEST_CASE("a worker that crashes or exits with an error fails the job, in the scheduler's words") {
  for (ProcessEnd how : {exited(3), killed(SIGSEGV), killed(SIGABRT), killed(SIGFPE),
                         killed(SIGBUS), killed(SIGILL)}) {
    Script job;
    job.status(Phase::kRunning);
    job.end(worker(2), how, "no such file");
    CHECK(job.told().fails_job);
    job.pass(10);
    job.status(Phase::kFailed, "worker 2: " + job.told().text);
    REQUIRE(job.core.failure());
    CHECK(job.core.failure()->who == "worker.2");
    CHECK(job.core.failure()->step == 102);
    CHECK(!job.core.failure()->restartable);
    // The others leave because the job failed: no causes.
    job.end(server(0), exited(1));
    job.end(server(1), exited(1));
    job.end(worker(0), exited(1));
    job.end(worker(1), exited(1));
    job.pass(10);
    job.status(Phase::kFailed, "worker 2: whatever");
    CHECK(job.count(Effect::Kind::kStopJob) == 1);
    job.end(kScheduler, exited(1));
    CHECK(job.core.over());
    CHECK(job.core.failure()->who == "worker.2");
    CHECK(job.count(Effect::Kind::kSignal) == 0);
  }
}

TEST_CASE("a reason that does not hold the culprit's last words is given them, once") {
  Script job;
  job.status(Phase::kRunning);
  const std::string reason = "worker 0 (here, pid 7): ended by an exception";
  job.status(Phase::kFailed, reason);
  SUBCASE("it adds something") {
    job.end(worker(0), exited(1), "no images in /nowhere");
    CHECK(job.core.failure()->reason == reason + "; it said: no images in /nowhere");
  }
  SUBCASE("it says the same") {
    job.end(worker(0), exited(1), "worker.0: ended by an exception");
    CHECK(job.core.failure()->reason == reason);
  }
  SUBCASE("somebody else says something") {
    job.end(worker(1), exited(1), "the job failed");
    CHECK(job.core.failure()->reason == reason);
  }
}

TEST_CASE("the exit of a member that was told of the failure does not hide who failed") {
  Script job;
  job.status(Phase::kRunning);
  job.end(server(1), exited(1));  // seen first, but a consequence
  job.end(worker(0), exited(1), "loss scale 1 is the lower bound");
  job.status(Phase::kFailed, "worker 0 (here, pid 7): loss scale 1 is the lower bound");
  REQUIRE(job.core.failure());
  CHECK(job.core.failure()->who == "worker.0");
  CHECK(job.core.failure()->reason == "worker 0 (here, pid 7): loss scale 1 is the lower bound");
}

TEST_CASE(
    "M1: a killed server fails the job, may be restarted, and is named even when others saw it "
    "first") {
  Script job;
  job.status(Phase::kRunning);
  SUBCASE("we saw it first") {
    job.end(server(0), killed(SIGKILL));
    CHECK(job.told().fails_job);
    job.status(Phase::kFailed, "server 0: was killed by SIGKILL");
  }
  SUBCASE("a worker saw it first") {
    job.status(Phase::kFailed, "worker 1 (here, pid 7): server 0 does not answer");
    job.end(server(0), killed(SIGKILL));
  }
  REQUIRE(job.core.failure());
  CHECK(job.core.failure()->who == "server.0");
  CHECK(job.core.failure()->restartable);
}

TEST_CASE("M2: a killed scheduler ends the job at once, by force") {
  Script job;
  job.status(Phase::kRunning);
  job.end(kScheduler, killed(SIGKILL));
  REQUIRE(job.core.failure());
  CHECK(job.core.failure()->reason == "scheduler was killed by SIGKILL");
  CHECK(job.core.failure()->restartable);
  job.pass(0);
  CHECK(job.count(Effect::Kind::kSignal, {}, SIGTERM) == 5);
  job.pass(1000);
  CHECK(job.count(Effect::Kind::kSignal, {}, SIGKILL) == 5);
  for (int i = 0; i < 2; ++i) job.end(server(i), killed(SIGTERM));
  for (int i = 0; i < 3; ++i) job.end(worker(i), killed(SIGTERM));
  CHECK(job.core.over());
  CHECK(job.core.failure()->who == "scheduler");
}

TEST_CASE("when every worker was killed the job failed and may be restarted") {
  Script job;
  job.status(Phase::kRunning);
  for (int i = 0; i < 3; ++i) job.end(worker(i), killed(SIGKILL));
  job.status(Phase::kFailed, "no worker is left");
  REQUIRE(job.core.failure());
  CHECK(job.core.failure()->restartable);
}

TEST_CASE("a program that ends with 0 but never finished its session fails the job") {
  Script job;
  job.status(Phase::kGathering);
  job.pass(10);
  job.end(worker(0), exited(0));
  CHECK(!job.core.failure());
  job.pass(10);
  job.status(Phase::kGathering);
  CHECK(job.told().fails_job);
  job.status(Phase::kFailed, "worker 0: ended without finishing");
  CHECK(job.core.failure());
}

TEST_CASE("without the scheduler's word an ending is judged alone") {
  Script job;
  job.status(Phase::kRunning);
  job.end(server(1), exited(4), "disk full");
  CHECK(!job.core.failure());
  job.pass(2000);
  REQUIRE(job.core.failure());
  CHECK(job.core.failure()->reason == "server.1 exited with code 4: disk full");
  job.pass(3000);
  CHECK(job.count(Effect::Kind::kSignal, {}, SIGTERM) == 5);
}

TEST_CASE("M3: Ctrl-C before the scheduler listens ends it at once") {
  const TimePoint start{};
  SupervisorCore core({.servers = 1, .workers = 1}, start);
  const Effects effects = core.interrupted(start);
  REQUIRE(effects.size() == 1);
  CHECK(effects[0].signal == SIGTERM);
  CHECK(core.scheduler_listens(start).empty());
}

TEST_CASE("Ctrl-C stops gracefully, then by force, all within two seconds") {
  Script job;
  job.status(Phase::kRunning);
  const TimePoint pressed = job.now;
  job.take(job.core.interrupted(job.now));
  CHECK(job.count(Effect::Kind::kStopJob) == 1);
  CHECK(job.count(Effect::Kind::kSignal) == 0);
  while (job.count(Effect::Kind::kSignal, {}, SIGKILL) == 0) {
    REQUIRE(job.core.next_deadline() != TimePoint::max());
    job.now = std::max(job.now, job.core.next_deadline());
    job.take(job.core.tick(job.now));
    REQUIRE(job.now - pressed < std::chrono::seconds(10));
  }
  CHECK(job.now - pressed < milliseconds(1900));
  CHECK(job.count(Effect::Kind::kSignal, {}, SIGKILL) == 6);
  CHECK(job.core.was_interrupted());
  CHECK(!job.core.ok());
}

TEST_CASE("Ctrl-C waits for a checkpoint and says so; the second one does not wait") {
  Script job({.servers = 2, .workers = 3, .checkpoints = true});
  job.status(Phase::kRunning);
  job.take(job.core.interrupted(job.now));
  for (int i = 0; i < 20; ++i) {
    job.pass(500);
    job.status(Phase::kRunning);
  }
  CHECK(job.count(Effect::Kind::kSignal) == 0);
  CHECK(job.said.find("a checkpoint is being written") != std::string::npos);
  SUBCASE("it is written") {
    job.status(Phase::kStopping);
    job.pass(1100);
    CHECK(job.count(Effect::Kind::kSignal) == 0);
    job.pass(200);
    CHECK(job.count(Effect::Kind::kSignal, {}, SIGTERM) == 6);
  }
  SUBCASE("again") {
    job.take(job.core.interrupted(job.now));
    CHECK(job.count(Effect::Kind::kSignal, {}, SIGTERM) == 6);
    job.pass(500);
    CHECK(job.count(Effect::Kind::kSignal, {}, SIGKILL) == 6);
  }
  SUBCASE("it takes too long") {
    for (int i = 0; i < 99; ++i) {
      job.pass(500);
      job.status(Phase::kRunning);
    }
    CHECK(job.count(Effect::Kind::kSignal) == 0);
    job.pass(500);
    CHECK(job.count(Effect::Kind::kSignal, {}, SIGTERM) == 6);
  }
  SUBCASE("the scheduler falls silent") {
    job.pass(1900);
    CHECK(job.count(Effect::Kind::kSignal) == 0);
    job.no_spinning();
    job.pass(100);
    CHECK(job.count(Effect::Kind::kSignal, {}, SIGTERM) == 6);
    CHECK(job.said.find("scheduler does not answer") != std::string::npos);
  }
}

TEST_CASE("Ctrl-C waits for no checkpoint of a scheduler that is silent already") {
  Script job({.servers = 2, .workers = 3, .checkpoints = true});
  job.status(Phase::kRunning);
  job.pass(2500);
  const TimePoint pressed = job.now;
  job.take(job.core.interrupted(job.now));
  while (job.count(Effect::Kind::kSignal, {}, SIGKILL) == 0) {
    REQUIRE(job.core.next_deadline() < pressed + milliseconds(1900));
    job.now = std::max(job.now, job.core.next_deadline());
    job.take(job.core.tick(job.now));
  }
  CHECK(job.count(Effect::Kind::kSignal, {}, SIGKILL) == 6);
}

TEST_CASE("O2: an injected pause ends after its seconds, another stop is only reported") {
  Script job({.servers = 2, .workers = 3, .checkpoints = false, .pauses = {{0, {20}}}});
  job.status(Phase::kRunning);
  job.take(job.core.stopped(job.now, worker(0), SIGSTOP));
  job.pass(19000);
  CHECK(job.count(Effect::Kind::kResume) == 0);
  job.pass(1000);
  CHECK(job.count(Effect::Kind::kResume, worker(0)) == 1);
  job.take(job.core.stopped(job.now, worker(0), SIGSTOP));
  job.pass(60000);
  CHECK(job.count(Effect::Kind::kResume) == 1);
  CHECK(job.said.find("worker.0 was stopped by SIGSTOP") != std::string::npos);
}

TEST_CASE("a server that stays after the end is ended and named") {
  Script job;
  job.status(Phase::kRunning, "", {0, 1, 2});
  for (int i = 0; i < 3; ++i) job.end(worker(i), exited(0));
  job.status(Phase::kDone, "", {0, 1, 2});
  job.end(server(1), exited(0));
  job.pass(10000);
  REQUIRE(job.core.failure());
  CHECK(job.core.failure()->who == "server.0");
  CHECK(job.count(Effect::Kind::kSignal, server(0), SIGTERM) == 1);
}

TEST_CASE("a worker that goes on after the end is waited for, without spinning") {
  Script job;
  job.status(Phase::kRunning, "", {0, 1, 2});
  job.end(worker(0), exited(0));
  job.end(worker(1), exited(0));
  job.status(Phase::kDone, "", {0, 1, 2});
  job.end(server(0), exited(0));
  job.end(server(1), exited(0));
  job.pass(3600 * 1000);
  job.no_spinning();
  CHECK(job.core.ok());
  CHECK(job.count(Effect::Kind::kSignal) == 0);
}

}  // namespace leeway::launcher
