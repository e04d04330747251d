#include "scheduler/launcher/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace leeway::launcher {
namespace {

std::vector<std::int64_t> histogram_of(const JobSnapshot& snapshot) {
  std::vector<std::int64_t> sum;
  for (const MemberSnapshot& one : snapshot.workers) {
    if (!one.worker) continue;
    const auto& histogram = one.worker->staleness_histogram;
    sum.resize(std::max(sum.size(), histogram.size()));
    for (std::size_t i = 0; i < histogram.size(); ++i) sum[i] += histogram[i];
  }
  return sum;
}

std::size_t recent_staleness(const std::optional<JobSnapshot>& before, const JobSnapshot& now) {
  const std::vector<std::int64_t> old =
      before ? histogram_of(*before) : std::vector<std::int64_t>{};
  const std::vector<std::int64_t> sum = histogram_of(now);
  for (std::size_t i = sum.size(); i > 0; --i)
    if (sum[i - 1] > (i <= old.size() ? old[i - 1] : 0)) return i - 1;
  return 0;
}

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::string row(std::string_view name, const std::string& value) {
  return fmt::format("  {:<16} {}", name, value);
}

}  // namespace

std::string counted(std::uint32_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::vector<std::string> start_lines(const JobSnapshot& snapshot) {
  std::vector<std::string> lines;
  for (const auto* list : {&snapshot.servers, &snapshot.workers})
    for (const MemberSnapshot& one : *list)
      lines.push_back(fmt::format("{:<10} {} on {}, {}, process {} on {}", to_string(one.member),
                                  or_dash(one.provider), or_dash(one.device), or_dash(one.address),
                                  one.pid, or_dash(one.host)));
  return lines;
}

std::string progress_line(const std::optional<JobSnapshot>& before, const JobSnapshot& now) {
  double loss = 0, epoch = 0, pushed = 0, pulled = 0;
  int training = 0, counted = 0, dead = 0;
  for (const MemberSnapshot& one : now.workers) {
    dead += one.state == "DEAD" ? 1 : 0;
    pushed += one.push_bytes_per_second;
    pulled += one.pull_bytes_per_second;
    if (!one.worker || one.worker->clock == 0 || one.state == "DEAD") continue;
    ++training;
    epoch += one.worker->epoch;
    if (!std::isfinite(one.worker->loss)) continue;
    ++counted;
    loss += one.worker->loss;
  }
  if (training == 0) return "no step is done yet";
  const auto bound = now.settings.find("staleness");
  std::string line = fmt::format(
      "epoch {:.2f}  loss {}  {:.0f} samples/s  staleness {}{}",  //
      epoch / training, counted == 0 ? "not finite" : fmt::format("{:.4f}", loss / counted),
      now.samples_per_second, recent_staleness(before, now),
      bound == now.settings.end() ? "" : fmt::format(" (bound {})", bound->second));
  line += fmt::format("  push {:.3f} GB/s  pull {:.3f} GB/s", pushed / 1e9, pulled / 1e9);
  if (dead > 0) line += fmt::format("  {} of {} workers lost", dead, now.workers.size());
  return line;
}

std::string failure_line(const Failure& failure) {
  return fmt::format("{} ({:.1f} s after the start{})", failure.reason, failure.seconds,
                     failure.step ? fmt::format(", at step {}", *failure.step) : "");
}

std::vector<std::string> end_lines(const Summary& summary, const std::string& checkpoint_dir,
                                   const std::string& log_dir) {
  std::vector<std::string> lines;
  lines.push_back(row("steps", fmt::format("{}", summary.steps)));
  lines.push_back(row("samples", fmt::format("{}", summary.samples)));
  lines.push_back(row("seconds", fmt::format("{:.1f}", summary.seconds)));
  lines.push_back(row("samples/s", fmt::format("{:.0f}", summary.samples_per_second())));
  lines.push_back(row("skipped steps", fmt::format("{}", summary.skipped_steps)));
  if (summary.restarts > 0)
    lines.push_back(row("restarts", fmt::format("{} ({} steps done again)", summary.restarts,
                                                summary.repeated_steps)));
  lines.push_back(
      row("staleness", fmt::format("bound {}, at most {}, violations {}", summary.staleness_bound,
                                   summary.max_staleness(), summary.staleness_violations)));
  for (const auto& [name, value] : summary.metrics)
    lines.push_back(row(name, fmt::format("{:.6g}", value)));
  std::string codes;
  for (const auto& [who, code] : summary.exit_codes)
    if (code != 0) codes += fmt::format("{}{} {}", codes.empty() ? "" : ", ", who, code);
  if (!codes.empty()) lines.push_back(row("exit codes", codes));
  if (!summary.last_checkpoint.empty())
    lines.push_back(
        row("checkpoint", fmt::format("{} in {}", summary.last_checkpoint, checkpoint_dir)));
  lines.push_back(row("logs", log_dir));
  return lines;
}

}  // namespace leeway::launcher
