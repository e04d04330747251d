#include "scheduler/launcher/summary.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "common/result.h"
#include "scheduler/launcher/child_process.h"
#include "storage/output_target.h"

namespace leeway::launcher {
namespace {

using nlohmann::ordered_json;

ordered_json finite_or_null(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json bound_json(std::string text) {
  // auto:LOW..HIGH promises HIGH.
  if (const auto dots = text.find(".."); dots != text.npos) text.erase(0, dots + 2);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return text;
  return number;
}

// Whoever the checkpoint does not know starts where the slowest of the others was.
std::int64_t restored_clock(const std::optional<CheckpointSnapshot>& checkpoint, int worker) {
  if (!checkpoint || checkpoint->clocks.empty()) return 0;
  const auto& clocks = checkpoint->clocks;
  if (const auto it = clocks.find(worker); it != clocks.end()) return it->second;
  return std::min_element(clocks.begin(), clocks.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->second;
}

[[noreturn]] void give_up(const std::string& path, const char* what) {
  throw ConfigError(fmt::format("summary {} cannot be {}: {}", path, what, std::strerror(errno)));
}

std::string temporary_of(const storage::OutputTarget& target) {
  return fmt::format("{}.{}.tmp", target.path, ::getpid());
}

Fd create(const std::string& path) {
  return Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
}

// A pipe that nobody reads is an error: waiting for a reader could be for ever.
Fd open_special(const std::string& path) {
  Fd file(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  if (file) ::fcntl(file.get(), F_SETFL, 0);
  return file;
}

bool write_all(const Fd& file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

std::int64_t Summary::max_staleness() const noexcept {
  for (std::size_t i = staleness_histogram.size(); i > 0; --i)
    if (staleness_histogram[i - 1] > 0) return static_cast<std::int64_t>(i - 1);
  return 0;
}

void Summary::add(const std::optional<CheckpointSnapshot>& restored, const JobSnapshot& last,
                  double more_seconds) {
  steps += steps_beyond(last, restored);
  seconds += more_seconds;
  metrics.clear();
  const auto add_figures = [this](const WorkerFigures& worker) {
    samples += worker.samples;
    skipped_steps += worker.skipped_steps;
    staleness_violations += worker.staleness_violations;
    if (staleness_histogram.size() < worker.staleness_histogram.size())
      staleness_histogram.resize(worker.staleness_histogram.size());
    for (std::size_t i = 0; i < worker.staleness_histogram.size(); ++i)
      staleness_histogram[i] += worker.staleness_histogram[i];
  };
  add_figures(last.replaced);
  for (auto it = last.workers.rbegin(); it != last.workers.rend(); ++it) {
    if (!it->worker) continue;
    add_figures(*it->worker);
    // From the highest rank down, so that the lowest one's value stays.
    for (const auto& [name, value] : it->worker->metrics) metrics[name] = value;
  }
  const auto bound = last.settings.find("staleness");
  if (bound != last.settings.end()) staleness_bound = bound->second;
  if (last.last_checkpoint) last_checkpoint = last.last_checkpoint->id;
}

std::optional<CheckpointSnapshot> restored_checkpoint(const std::string& resume,
                                                      const JobSnapshot& first) {
  if (resume == "never") return std::nullopt;
  if (resume == "auto") return first.last_checkpoint;
  for (const CheckpointSnapshot& one : first.checkpoints)
    if (one.id == resume) return one;
  return std::nullopt;
}

std::int64_t steps_beyond(const JobSnapshot& last,
                          const std::optional<CheckpointSnapshot>& restored) {
  std::int64_t steps = last.replaced.clock;
  for (const MemberSnapshot& one : last.workers) {
    if (!one.worker) continue;
    const std::int64_t first = std::max(restored_clock(restored, one.member.id), one.first_clock);
    steps += std::max<std::int64_t>(0, one.worker->clock - first);
  }
  return steps;
}

std::string to_json(const Summary& s) {
  ordered_json metrics = ordered_json::object();
  for (const auto& [name, value] : s.metrics) metrics[name] = finite_or_null(value);
  ordered_json exit_codes = ordered_json::object();
  for (const auto& [who, code] : s.exit_codes) exit_codes[who] = code;
  ordered_json histogram = ordered_json::array();
  for (std::int64_t count : s.staleness_histogram) histogram.push_back(count);
  const ordered_json out = {
      {"result", s.ok ? "ok" : "failed"},
      {"reason", s.reason.empty() ? ordered_json(nullptr) : ordered_json(s.reason)},
      {"exit_codes", exit_codes},
      {"steps", s.steps},
      {"samples", s.samples},
      {"seconds", finite_or_null(s.seconds)},
      {"samples_per_second", finite_or_null(s.samples_per_second())},
      {"skipped_steps", s.skipped_steps},
      {"restarts", s.restarts},
      {"repeated_steps", s.repeated_steps},
      {"staleness",
       {{"bound", bound_json(s.staleness_bound)},
        {"max_observed", s.max_staleness()},
        {"violations", s.staleness_violations},
        {"histogram", histogram}}},
      {"last_checkpoint",
       s.last_checkpoint.empty() ? ordered_json(nullptr) : ordered_json(s.last_checkpoint)},
      {"metrics", metrics},
  };
  // A reason may quote bytes of a program's log that are no UTF-8.
  return out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

void check_summary_target(const std::string& path) {
  const storage::OutputTarget target = storage::output_target(path);
  if (target.replace) {
    const std::string temporary = temporary_of(target);
    if (!create(temporary)) give_up(path, "written");
    ::unlink(temporary.c_str());
  } else if (std::filesystem::is_directory(target.path)) {
    errno = EISDIR;
    give_up(path, "written");
  } else if (::access(target.path.c_str(), W_OK) != 0) {  // opening a pipe would tell its reader
    give_up(path, "written");
  }
}

void write_summary(const Summary& summary, const std::string& path) {
  const std::string text = to_json(summary);
  const storage::OutputTarget target = storage::output_target(path);
  if (!target.replace) {
    const Fd file = open_special(target.path);
    if (!file || !write_all(file, text)) give_up(path, "written");
    return;
  }
  const std::string temporary = temporary_of(target);
  const Fd file = create(temporary);
  if (!file) give_up(path, "written");
  const bool written = write_all(file, text);
  if (written && ::rename(temporary.c_str(), target.path.c_str()) == 0) return;
  const int error = errno;
  ::unlink(temporary.c_str());
  errno = error;
  give_up(path, written ? "put in place" : "written");
}

}  // namespace leeway::launcher
