// The tables of leeway-admin.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "common/learning_rate.h"
#include "common/tensor.h"
#include "scheduler/admin_format.h"

namespace leeway::scheduler {
namespace {

std::string decimal(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : "-";
}

std::string gigabytes(double bytes) { return decimal(bytes / 1e9, 3); }
std::string mebibytes(std::int64_t bytes) {
  return decimal(static_cast<double>(bytes) / (1 << 20), 1);
}

std::string address_of(const rpc::MemberStatus& member) {
  return member.fabric.printable.empty() ? "-" : member.fabric.printable;
}

std::string provider_of(const rpc::MemberStatus& member) {
  if (member.fabric.provider.empty()) return "-";
  return member.fabric.device.empty()
             ? member.fabric.provider
             : fmt::format("{}/{}", member.fabric.provider, member.fabric.device);
}

// The largest staleness that any pull had: the last bucket with something in it.
std::string max_staleness(const std::vector<std::int64_t>& histogram) {
  for (std::size_t i = histogram.size(); i > 0; --i)
    if (histogram[i - 1] > 0) return fmt::format("{}", i - 1);
  return "-";
}

std::string clocks(const std::map<std::int32_t, std::int64_t>& clocks) {
  std::string text;
  for (const auto& [worker, clock] : clocks)
    text += fmt::format("{}{}:{}", text.empty() ? "" : " ", worker, clock);
  return text.empty() ? "-" : text;
}

std::string errors_text(const std::vector<rpc::MemberStatus>& members) {
  std::string text;
  for (const rpc::MemberStatus& member : members)
    if (!member.error.empty())
      text += fmt::format("{} {}: {}\n", member.role, member.id, member.error);
  return text;
}

std::string rate_text(const rpc::JobStatus& status) {
  const auto base = status.settings.find("learning_rate");
  const auto schedule = status.settings.find("schedule");
  const double now = learning_rate_now(status);
  if (base == status.settings.end() || schedule == status.settings.end() || !std::isfinite(now))
    return "-";
  const std::string text = fmt::format("{:.6g}", now);
  return text == base->second ? text
                              : fmt::format("{} ({}, {})", text, base->second, schedule->second);
}

bool numeric(const std::string& cell) {
  return cell == "-" || (!cell.empty() && std::isdigit(static_cast<unsigned char>(cell.back())) &&
                         cell.find_first_not_of("0123456789.-") == std::string::npos);
}

}  // namespace

double learning_rate_now(const rpc::JobStatus& status) {
  const auto settings = JobSettings::from_values(status.settings);
  if (!settings || !settings->check()) return std::nan("");
  std::int64_t fastest = 0;
  for (const rpc::MemberStatus& worker : status.workers)
    fastest = std::max(fastest, worker.worker.clock);
  return settings->learning_rate *
         learning_rate_factor(*settings, static_cast<std::uint64_t>(fastest));
}

std::string Table::text() const {
  const std::size_t columns = rows_.front().size();
  std::vector<std::size_t> width(columns);
  std::vector<char> right(columns, 1);
  for (std::size_t r = 0; r < rows_.size(); ++r)
    for (std::size_t c = 0; c < columns; ++c) {
      width[c] = std::max(width[c], rows_[r][c].size());
      if (r > 0 && !numeric(rows_[r][c])) right[c] = 0;
    }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < columns; ++c)
      line += right[c] ? fmt::format("{:>{}}  ", row[c], width[c])
                       : fmt::format("{:<{}}  ", row[c], width[c]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

std::string status_text(const rpc::JobStatus& status) {
  const auto setting = [&](const char* name) {
    const auto it = status.settings.find(name);
    return it == status.settings.end() ? std::string("-") : it->second;
  };
  std::int64_t slowest = INT64_MAX, fastest = 0, violations = 0;
  double pushed = 0, pulled = 0;
  for (const rpc::MemberStatus& worker : status.workers) {
    if (worker.state != "LIVE" && worker.state != "FINISHED") continue;
    slowest = std::min(slowest, worker.worker.clock);
    fastest = std::max(fastest, worker.worker.clock);
    violations += worker.worker.staleness_violations;
    pushed += worker.push_bytes_per_second;
    pulled += worker.pull_bytes_per_second;
  }
  std::string out = fmt::format("job          {:x}\nphase        {}{}{}\n", status.job,
                                status.phase, status.reason.empty() ? "" : ": ", status.reason);
  out +=
      fmt::format("running      {} s, view {}\n", decimal(status.seconds_running, 1), status.epoch);
  const auto room = status.places > static_cast<std::int32_t>(status.workers.size())
                        ? fmt::format(" (room for {})", status.places)
                        : std::string();
  out += fmt::format("members      {} servers, {} workers{}\n", status.servers.size(),
                     status.workers.size(), room);
  out += fmt::format("clocks       {} to {}\n", slowest == INT64_MAX ? 0 : slowest, fastest);
  out += fmt::format("consistency  staleness {}, {}; {} violations\n", setting("staleness"),
                     setting("update"), violations);
  out +=
      fmt::format("optimizer    {}, learning rate {}\n", setting("optimizer"), rate_text(status));
  out += fmt::format("samples      {}, {} a second\n", status.samples,
                     decimal(status.samples_per_second, 0));
  out += fmt::format("traffic      {} GB/s pushed, {} GB/s pulled\n", gigabytes(pushed),
                     gigabytes(pulled));
  out += fmt::format("checkpoint   {}\n",
                     status.__isset.last_checkpoint ? status.last_checkpoint.id : "none yet");
  for (const rpc::MemberStatus& server : status.servers)
    if (!server.server.waiting.empty())
      out += fmt::format("server {} waits: {}\n", server.id, server.server.waiting);
  return out + errors_text(status.servers) + errors_text(status.workers);
}

std::string workers_text(const rpc::JobStatus& status) {
  Table table({"worker", "state", "host", "pid", "address", "provider", "clock", "samples/s",
               "loss", "staleness", "violations", "skipped", "push GB/s", "pull GB/s", "waiting s",
               "loading s", "heard s ago"});
  std::string histograms;
  for (const rpc::MemberStatus& member : status.workers) {
    const rpc::WorkerReport& w = member.worker;
    table.add({fmt::format("{}", member.id), member.state, member.host.empty() ? "-" : member.host,
               fmt::format("{}", member.pid), address_of(member), provider_of(member),
               fmt::format("{}", w.clock), decimal(member.samples_per_second, 0),
               decimal(w.loss, 4), max_staleness(w.staleness_histogram),
               fmt::format("{}", w.staleness_violations), fmt::format("{}", w.skipped_steps),
               gigabytes(member.push_bytes_per_second), gigabytes(member.pull_bytes_per_second),
               decimal(w.seconds_waiting, 1), decimal(w.seconds_loading, 1),
               decimal(member.seconds_since_heartbeat, 1)});
    if (member.first_clock > 0)
      histograms += fmt::format("worker {}: began at clock {}\n", member.id, member.first_clock);
    if (!w.staleness_histogram.empty())
      histograms += fmt::format("worker {}: pulls by observed staleness 0, 1, ...: {}\n", member.id,
                                fmt::join(w.staleness_histogram, " "));
  }
  return table.text() + histograms + errors_text(status.workers);
}

std::string servers_text(const rpc::JobStatus& status) {
  Table table({"server", "state", "host", "pid", "address", "provider", "elements", "memory MiB",
               "updates", "applied", "read GB/s", "write GB/s", "heard s ago"});
  std::string waiting;
  for (const rpc::MemberStatus& member : status.servers) {
    const rpc::ServerReport& s = member.server;
    table.add({fmt::format("{}", member.id), member.state, member.host.empty() ? "-" : member.host,
               fmt::format("{}", member.pid), address_of(member), provider_of(member),
               fmt::format("{}", s.shard_elements), mebibytes(s.memory_bytes),
               fmt::format("{}", s.updates), clocks(s.applied),
               gigabytes(member.push_bytes_per_second), gigabytes(member.pull_bytes_per_second),
               decimal(member.seconds_since_heartbeat, 1)});
    if (!s.waiting.empty()) waiting += fmt::format("server {} waits: {}\n", member.id, s.waiting);
  }
  return table.text() + waiting + errors_text(status.servers);
}

std::string tensors_text(const std::vector<rpc::TensorStatus>& tensors) {
  Table table({"tensor", "shape", "elements", "partitions", "servers"});
  for (const rpc::TensorStatus& tensor : tensors)
    table.add({tensor.name, to_string(tensor.shape), fmt::format("{}", tensor.elements),
               fmt::format("{}", tensor.partitions),
               tensor.servers.empty() ? "-" : fmt::format("{}", fmt::join(tensor.servers, ","))});
  return table.text();
}

std::string checkpoints_text(const std::vector<rpc::CheckpointInfo>& checkpoints) {
  Table table({"checkpoint", "written (UTC)", "MiB", "servers", "clocks"});
  for (const rpc::CheckpointInfo& checkpoint : checkpoints)
    table.add({checkpoint.id,
               fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::gmtime(checkpoint.created_unix_s)),
               mebibytes(checkpoint.bytes), fmt::format("{}", checkpoint.servers),
               clocks(checkpoint.clocks)});
  return table.text();
}

}  // namespace leeway::scheduler
