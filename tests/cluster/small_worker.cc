// A tiny training program for tests: parameters of given shapes, gradients that follow a simple
// rule, and a fault of one's choice. It prints what it saw:
//
//   step N            after the commit of step N (counted from 1), with --print-steps
//   first HEX         hash of the weights of its first step
//   weights NAME FIRST LAST HEX   at the end (finish or stop): first and last element, hash
//
// The gradient of every element is constant, or (w - target) * --pull with --pull.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>
#include <thread>

#include "common/half.h"
#include "worker/session.h"

namespace {

using leeway::Shape;
using leeway::worker::Parameter;
using leeway::worker::Session;

struct Flags {
  std::uint64_t steps = 10;
  std::vector<std::string> shapes = {"a=4x3", "b=5"};
  double gradient = 1;  // of worker 0; worker r pushes gradient * (r + 1) with --by-rank
  bool by_rank = false;
  double pull = 0;  // gradient = (w - target) * pull
  double target = 1;
  double initial = 0;
  int seed_by_rank = 0;  // initial values differ between workers
  std::int64_t nan_at = -1, inf_at = -1;
  int fault_rank = -1;  // who pushes nan_at / inf_at; -1 = everybody
  int reverse_rank = -1, duplicate_rank = -1, other_shape_rank = -1, late_rank = -1;
  double late_seconds = 0;
  int step_ms = 0;
  bool start_helpers = false;  // a process by fork and one by posix_spawn in each step
  bool print_steps = false;
  int kill_between_rank = -1;  // SIGKILL between the pushes of two tensors ...
  std::int64_t kill_between_step = -1;
  double metric = 0;
  bool nan_metric = false, nan_loss = false;
  std::vector<std::string> settings;
};

struct Declared {
  std::string name;
  Parameter parameter;
  std::size_t elements = 0;
};

std::uint64_t hash(std::span<const std::byte> bytes, std::uint64_t start = 1469598103934665603ull) {
  for (std::byte byte : bytes)
    start = (start ^ static_cast<std::uint64_t>(byte)) * 1099511628211ull;
  return start;
}

std::pair<std::string, Shape> parse_shape(const std::string& text) {
  const auto equals = text.find('=');
  Shape shape;
  std::stringstream sizes(text.substr(equals + 1));
  for (std::string size; std::getline(sizes, size, 'x');) shape.push_back(std::stoll(size));
  return {text.substr(0, equals), shape};
}

std::size_t count(const Shape& shape) {
  std::size_t elements = 1;
  for (auto size : shape) elements *= static_cast<std::size_t>(size);
  return elements;
}

float value_at(const Session& session, std::span<const std::byte> weights, std::size_t i) {
  if (session.weights_dtype() == leeway::Dtype::kF32) {
    float value = 0;
    std::memcpy(&value, weights.data() + 4 * i, 4);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, weights.data() + 2 * i, 2);
  return session.weights_dtype() == leeway::Dtype::kBf16 ? to_float(leeway::Bfloat16{bits})
                                                         : to_float(leeway::Half{bits});
}

// They touch as much memory as they like and end; ours must be none the worse.
void start_helpers() {
  const pid_t forked = fork();
  if (forked == 0) {
    execl("/bin/true", "true", nullptr);
    _exit(1);
  }
  pid_t spawned = -1;
  char name[] = "true";
  char* arguments[] = {name, nullptr};
  posix_spawn(&spawned, "/bin/true", nullptr, nullptr, arguments, environ);
  for (const pid_t helper : {forked, spawned})
    if (int status = 0; waitpid(helper, &status, 0) != helper || status != 0) std::abort();
}

std::vector<Declared> declare(Session& session, const Flags& flags) {
  const int rank = static_cast<int>(session.rank());
  std::vector<std::string> shapes = flags.shapes;
  if (rank == flags.reverse_rank) std::reverse(shapes.begin(), shapes.end());
  if (rank == flags.duplicate_rank) shapes.push_back(shapes.front());
  std::vector<Declared> declared;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    auto [name, shape] = parse_shape(shapes[i]);
    if (rank == flags.other_shape_rank && i == 0) shape.back() += 1;
    std::vector<float> initial(count(shape), static_cast<float>(flags.initial));
    if (flags.seed_by_rank != 0)
      for (std::size_t k = 0; k < initial.size(); ++k)
        initial[k] = static_cast<float>(rank * 100 + flags.seed_by_rank) + 0.5f * (k % 7);
    declared.push_back({name, session.declare(name, shape, initial), initial.size()});
  }
  return declared;
}

std::vector<float> gradient_of(const Session& session, const Declared& one, const Flags& flags) {
  const auto weights = session.weights(one.parameter);
  const double scale = session.loss_scale();
  const double constant = flags.gradient * (flags.by_rank ? session.rank() + 1 : 1);
  std::vector<float> gradient(one.elements);
  for (std::size_t i = 0; i < one.elements; ++i) {
    const double g =
        flags.pull == 0 ? constant : (value_at(session, weights, i) - flags.target) * flags.pull;
    gradient[i] = static_cast<float>(g * scale);
  }
  const bool mine = flags.fault_rank < 0 || flags.fault_rank == static_cast<int>(session.rank());
  const auto now = static_cast<std::int64_t>(session.clock().value());
  if (mine && !gradient.empty() && flags.nan_at >= 0 && now >= flags.nan_at)
    gradient[gradient.size() / 2] = std::numeric_limits<float>::quiet_NaN();
  if (mine && !gradient.empty() && now == flags.inf_at)
    gradient.back() = std::numeric_limits<float>::infinity();
  return gradient;
}

void train(Session& session, const std::vector<Declared>& declared, const Flags& flags) {
  bool first = true;
  while (session.clock().value() < flags.steps && session.begin_step()) {
    if (std::exchange(first, false)) {
      std::uint64_t all = hash({});
      std::vector<Declared> by_name = declared;
      std::sort(by_name.begin(), by_name.end(),
                [](const auto& a, const auto& b) { return a.name < b.name; });
      for (const Declared& one : by_name) all = hash(session.weights(one.parameter), all);
      fmt::print("first {:016x}\n", all);
      std::fflush(stdout);
    }
    const auto step = static_cast<std::int64_t>(session.clock().value());
    if (flags.step_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(flags.step_ms));
    for (std::size_t i = 0; i < declared.size(); ++i) {
      if (i == declared.size() / 2 && step == flags.kill_between_step &&
          static_cast<int>(session.rank()) == flags.kill_between_rank)
        ::raise(SIGKILL);
      if (declared[i].elements > 0)
        session.push(declared[i].parameter, gradient_of(session, declared[i], flags));
    }
    if (flags.start_helpers) start_helpers();  // while servers read what was pushed
    session.commit({.samples = 1,
                    .loss = flags.nan_loss ? std::nan("") : 1.0 / static_cast<double>(step + 1),
                    .epoch = 0});
    if (flags.print_steps) {
      fmt::print("step {}\n", session.clock().value());
      std::fflush(stdout);
    }
  }
}

int run(const Flags& flags) {
  leeway::worker::SessionOptions options;
  for (const std::string& text : flags.settings)
    options.settings[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  const char* rank = std::getenv("RANK");
  if (flags.late_rank >= 0 && rank != nullptr && std::stoi(rank) == flags.late_rank)
    std::this_thread::sleep_for(std::chrono::duration<double>(flags.late_seconds));
  const auto session = Session::from_environment(options);
  const std::vector<Declared> declared = declare(*session, flags);
  session->start();
  train(*session, declared, flags);
  session->pull_final();
  for (const Declared& one : declared) {
    const auto weights = session->weights(one.parameter);
    fmt::print("weights {} {} {} {:016x}\n", one.name,
               one.elements == 0 ? 0 : value_at(*session, weights, 0),
               one.elements == 0 ? 0 : value_at(*session, weights, one.elements - 1),
               hash(weights));
  }
  std::fflush(stdout);
  session->finish({{"metric", flags.nan_metric ? std::nan("") : flags.metric}});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("A tiny worker for tests");
  app.add_option("--steps", flags.steps);
  app.add_option("--shapes", flags.shapes, "NAME=AxB ...");
  app.add_option("--gradient", flags.gradient);
  app.add_flag("--by-rank", flags.by_rank);
  app.add_option("--pull", flags.pull);
  app.add_option("--target", flags.target);
  app.add_option("--initial", flags.initial);
  app.add_option("--seed-by-rank", flags.seed_by_rank);
  app.add_option("--nan-at", flags.nan_at);
  app.add_option("--inf-at", flags.inf_at);
  app.add_option("--fault-rank", flags.fault_rank);
  app.add_option("--reverse-rank", flags.reverse_rank);
  app.add_option("--duplicate-rank", flags.duplicate_rank);
  app.add_option("--other-shape-rank", flags.other_shape_rank);
  app.add_option("--late-rank", flags.late_rank);
  app.add_option("--late-seconds", flags.late_seconds);
  app.add_option("--step-ms", flags.step_ms);
  app.add_flag("--start-helpers", flags.start_helpers);
  app.add_flag("--print-steps", flags.print_steps);
  app.add_option("--kill-between-rank", flags.kill_between_rank);
  app.add_option("--kill-between-step", flags.kill_between_step);
  app.add_option("--metric", flags.metric);
  app.add_flag("--nan-metric", flags.nan_metric);
  app.add_flag("--nan-loss", flags.nan_loss);
  app.add_option("--settings", flags.settings, "KEY=VALUE ...");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(flags);
  } catch (const std::exception& error) {
    fmt::print(stderr, "small_worker: {}\n", error.what());
    return 1;
  }
}
