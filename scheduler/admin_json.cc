// The JSON of leeway-admin: the structs of scheduler.thrift under their own names.
#include <cmath>
#include <nlohmann/json.hpp>

#include "scheduler/admin_format.h"

namespace leeway::scheduler {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json by_worker(const std::map<std::int32_t, std::int64_t>& clocks) {
  Json out = Json::object();
  for (const auto& [worker, clock] : clocks) out[std::to_string(worker)] = clock;
  return out;
}

std::int64_t max_staleness(const std::vector<std::int64_t>& histogram) {
  for (std::size_t i = histogram.size(); i > 0; --i)
    if (histogram[i - 1] > 0) return static_cast<std::int64_t>(i - 1);
  return 0;
}

Json checkpoint(const rpc::CheckpointInfo& info) {
  return {{"id", info.id},
          {"created_unix_s", info.created_unix_s},
          {"clocks", by_worker(info.clocks)},
          {"bytes", info.bytes},
          {"servers", info.servers}};
}

Json member(const rpc::MemberStatus& m) {
  Json out = {{"id", m.id},
              {"role", m.role},
              {"state", m.state},
              {"host", m.host},
              {"pid", m.pid},
              {"incarnation", m.incarnation},
              {"fabric", m.fabric.fabric},
              {"provider", m.fabric.provider},
              {"device", m.fabric.device},
              {"address", m.fabric.printable},
              {"seconds_since_heartbeat", number(m.seconds_since_heartbeat)},
              {"push_bytes_per_second", number(m.push_bytes_per_second)},
              {"pull_bytes_per_second", number(m.pull_bytes_per_second)},
              {"error", m.error}};
  if (m.__isset.worker) {
    const rpc::WorkerReport& w = m.worker;
    Json metrics = Json::object();
    for (const auto& [name, value] : w.metrics) metrics[name] = number(value);
    out.update({{"clock", w.clock},
                {"first_clock", m.first_clock},
                {"samples", w.samples},
                {"samples_per_second", number(m.samples_per_second)},
                {"skipped_steps", w.skipped_steps},
                {"loss", number(w.loss)},
                {"epoch", number(w.epoch)},
                {"loss_scale", number(w.loss_scale)},
                {"bytes_pushed", w.bytes_pushed},
                {"bytes_pulled", w.bytes_pulled},
                {"staleness",
                 {{"max_observed", max_staleness(w.staleness_histogram)},
                  {"violations", w.staleness_violations},
                  {"histogram", w.staleness_histogram}}},
                {"seconds_waiting", number(w.seconds_waiting)},
                {"seconds_loading", number(w.seconds_loading)},
                {"metrics", std::move(metrics)}});
  }
  if (m.__isset.server) {
    const rpc::ServerReport& s = m.server;
    out.update({{"ready", s.ready},
                {"applied", by_worker(s.applied)},
                {"updates", s.updates},
                {"bytes_read", s.bytes_read},
                {"bytes_written", s.bytes_written},
                {"memory_bytes", s.memory_bytes},
                {"shard_elements", s.shard_elements},
                {"waiting", s.waiting}});
  }
  return out;
}

Json members(const std::vector<rpc::MemberStatus>& list) {
  Json out = Json::array();
  for (const rpc::MemberStatus& m : list) out.push_back(member(m));
  return out;
}

std::string text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace

std::string status_json(const rpc::JobStatus& status) {
  return text(
      {{"job", status.job},
       {"epoch", status.epoch},
       {"phase", status.phase},
       {"reason", status.reason.empty() ? Json(nullptr) : Json(status.reason)},
       {"seconds_running", number(status.seconds_running)},
       {"places", status.places},
       {"samples", status.samples},
       {"samples_per_second", number(status.samples_per_second)},
       {"last_checkpoint",
        status.__isset.last_checkpoint ? checkpoint(status.last_checkpoint) : Json(nullptr)},
       {"settings", status.settings},
       {"learning_rate", number(learning_rate_now(status))},
       {"servers", members(status.servers)},
       {"workers", members(status.workers)}});
}

std::string workers_json(const rpc::JobStatus& status) { return text(members(status.workers)); }
std::string servers_json(const rpc::JobStatus& status) { return text(members(status.servers)); }

std::string tensors_json(const std::vector<rpc::TensorStatus>& tensors) {
  Json out = Json::array();
  for (const rpc::TensorStatus& tensor : tensors)
    out.push_back({{"name", tensor.name},
                   {"shape", tensor.shape},
                   {"elements", tensor.elements},
                   {"partitions", tensor.partitions},
                   {"servers", tensor.servers}});
  return text(out);
}

std::string checkpoints_json(const std::vector<rpc::CheckpointInfo>& checkpoints) {
  Json out = Json::array();
  for (const rpc::CheckpointInfo& info : checkpoints) out.push_back(checkpoint(info));
  return text(out);
}

}  // namespace leeway::scheduler
