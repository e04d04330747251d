#include "tests/bench/contention_bench.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "common/monotonic.h"
#include "common/result.h"
#include "tests/bench/pushpull_job.h"
#include "tests/bench/summary.h"

namespace leeway::bench {
namespace {

constexpr std::uint32_t kPullers = 2;
constexpr int kUpdates = 12;  // in a round
constexpr std::chrono::milliseconds kPullsAlone{200};

struct Speed {
  double elapsed = 0, processor = 0;  // G parameters a second
  double pulls = 0;                   // GB/s
};

class Contention {
 public:
  Contention(const ContentionOptions& options, unsigned threads)
      : elements_((options.model_mib << 20) / sizeof(float)),
        job_({.fabric = options.fabric,
              .workers = 1 + kPullers,
              .elements = elements_,
              .partition_elements = (options.partition_mib << 20) / sizeof(float),
              .optimizer = options.optimizer,
              .threads = threads,
              .uniform = true}) {}

  Speed updates() {
    const Server before = server();
    job_.tell(0, {{"do", "apply"}, {"steps", kUpdates}});
    job_.answer_of(0);
    const Server after = server();
    const double parameters = (after.updates - before.updates) * static_cast<double>(elements_);
    return {.elapsed = parameters / (after.seconds - before.seconds) / 1e9,
            .processor = parameters / (after.processor - before.processor) / 1e9};
  }

  Speed updates_with_pulls(bool check) {
    begin_pulls(check);
    Speed speed = updates();
    speed.pulls = end_pulls();
    return speed;
  }

  double pulls() {
    begin_pulls(false);
    std::this_thread::sleep_for(kPullsAlone);
    return end_pulls();
  }

 private:
  struct Server {
    double updates, seconds, processor;
  };
  Server server() {
    const nlohmann::json answer = job_.ask_servers({{"do", "updates"}})[0];
    return {answer.at("updates"), answer.at("seconds"), answer.at("processor")};
  }

  void begin_pulls(bool check) {
    for (std::uint32_t w = 1; w <= kPullers; ++w)
      job_.tell(w, {{"do", "keep pulling"}, {"check", check}});
    for (std::uint32_t w = 1; w <= kPullers; ++w) job_.answer_of(w);
  }
  double end_pulls() {
    for (std::uint32_t w = 1; w <= kPullers; ++w) job_.tell(w, {{"do", "stop"}});
    double speed = 0;
    for (std::uint32_t w = 1; w <= kPullers; ++w) {
      const nlohmann::json moved = job_.answer_of(w);
      speed += moved.at("bytes").get<double>() /
               (moved.at("end").get<double>() - moved.at("begin").get<double>());
    }
    return speed;
  }

  const std::size_t elements_;
  PushPullJob job_;
};

}  // namespace

std::vector<Case> run_contention(const ContentionOptions& options) {
  if (options.partition_mib > options.model_mib)
    throw ConfigError(fmt::format("--partition-mib {} is more than --model-mib {}",
                                  options.partition_mib, options.model_mib));
  std::vector<Case> cases;
  for (const unsigned threads : options.threads) {
    Contention job(options, threads);
    Rounds elapsed, processor, pulls;
    // The first round warms connections and pages, and counts for nothing.
    for (int round = -1; round < options.rounds; ++round) {
      const Speed before = round % 2 == 0 ? Speed() : job.updates();
      const Speed ours = job.updates_with_pulls(false);
      const Speed alone = round % 2 == 0 ? job.updates() : before;
      const double pulls_alone = job.pulls();
      job.updates_with_pulls(true);
      if (round < 0) continue;
      elapsed.add(ours.elapsed, alone.elapsed);
      processor.add(ours.processor, alone.processor);
      pulls.add(ours.pulls, pulls_alone);
    }
    const std::string name =
        fmt::format("{} {} {} thread{} beside {} pulls", options.fabric, options.optimizer, threads,
                    threads == 1 ? "" : "s", kPullers);
    cases.push_back(elapsed.summary(name + ", elapsed", "G params/s"));
    cases.push_back(processor.summary(name + ", processor", "G params/s"));
    cases.push_back(pulls.summary(name + ", the pulls", "GB/s"));
  }
  return cases;
}

}  // namespace leeway::bench
