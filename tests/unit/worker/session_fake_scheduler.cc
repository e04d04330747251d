#include "tests/unit/worker/session_fake_scheduler.h"

#include <algorithm>
#include <utility>

#include "common/tensor.h"

namespace leeway::worker::testing {

class FakeControlPlane final : public ControlPlane {
 public:
  explicit FakeControlPlane(FakeScheduler& scheduler) : s_(scheduler) {}

  Result<rpc::Registration> join(const rpc::RegisterRequest& request) override {
    if (s_.on_join)
      if (auto status = s_.on_join(request); !status) return tl::unexpected(status.error());
    rpc::Registration registration;
    registration.incarnation = 5;
    registration.job = kJob;
    registration.settings = s_.settings;
    registration.checkpoint_dir = s_.checkpoint_dir;
    registration.servers = static_cast<std::int32_t>(s_.view_.servers.size());
    registration.workers = 1;
    return registration;
  }
  Status declare(const rpc::Caller&, const rpc::Model& model) override {
    const std::lock_guard lock(s_.mutex_);
    s_.make_plan(model);
    return {};
  }
  Result<rpc::View> watch(const rpc::Caller&, std::int64_t epoch, milliseconds wait,
                          const rpc::WorkerReport& report) override {
    std::unique_lock lock(s_.mutex_);
    s_.report_ = report;
    s_.changed_.notify_all();
    s_.changed_.wait_for(lock, wait, [&] { return s_.view_.epoch > epoch || s_.silence_; });
    if (s_.silence_) return tl::unexpected(*s_.silence_);
    return s_.view_;
  }
  Result<rpc::Plan> plan(const rpc::Caller&) override {
    const std::lock_guard lock(s_.mutex_);
    return s_.plan_;
  }
  Status finish(const rpc::Caller&, const rpc::WorkerReport& report) override {
    const std::lock_guard lock(s_.mutex_);
    s_.finished_ = report;
    s_.changed_.notify_all();
    return {};
  }
  Status fault(const rpc::Caller&, const std::string& reason) override {
    const std::lock_guard lock(s_.mutex_);
    s_.fault_ = reason;
    s_.changed_.notify_all();
    return {};
  }

  Status stop(const rpc::Caller&, const std::string& reason) override {
    s_.set_phase(rpc::Phase::STOPPING, reason);
    return {};
  }

 private:
  FakeScheduler& s_;
};

FakeScheduler::FakeScheduler(std::vector<transport::EndpointInfo> servers) {
  view_.epoch = 1;
  view_.phase = rpc::Phase::GATHERING;
  view_.initializer = -1;
  for (std::size_t s = 0; s < servers.size(); ++s) {
    rpc::Member member;
    member.id = static_cast<std::int32_t>(s);
    member.incarnation = kServerIncarnation;
    member.state = rpc::MemberState::LIVE;
    member.fabric.printable = servers[s].printable;
    member.fabric.address.assign(reinterpret_cast<const char*>(servers[s].address.data()),
                                 servers[s].address.size());
    view_.servers.push_back(member);
  }
}

ControlPlaneFactory FakeScheduler::factory() {
  return [this] { return std::make_unique<FakeControlPlane>(*this); };
}

// Tensors in name order, cut into partitions that go to the servers in turn.
void FakeScheduler::make_plan(const rpc::Model& model) {
  plan_.tensors = model.tensors;
  std::sort(plan_.tensors.begin(), plan_.tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  for (std::size_t t = 0; t < plan_.tensors.size(); ++t) {
    const auto elements = static_cast<std::int64_t>(*element_count(plan_.tensors[t].shape));
    const auto most = static_cast<std::int64_t>(partition_elements);
    for (std::int64_t first = 0; first < elements; first += most) {
      rpc::Partition partition;
      partition.id = static_cast<std::int32_t>(plan_.partitions.size());
      partition.tensor = static_cast<std::int32_t>(t);
      partition.first = first;
      partition.elements = std::min(most, elements - first);
      partition.server = partition.id % static_cast<std::int32_t>(view_.servers.size());
      plan_.partitions.push_back(partition);
    }
  }
  plan_.settings = settings;
  for (const auto& [name, value] : model.settings) plan_.settings.emplace(name, value);
  if (progress) {
    plan_.restore = restore;
    plan_.progress[0] = *progress;
  }
  view_.phase = planned;
  view_.initializer = initializer && !progress ? 0 : -1;
  touch();
}

void FakeScheduler::set_phase(rpc::Phase::type phase, std::string reason) {
  const std::lock_guard lock(mutex_);
  view_.phase = phase;
  view_.reason = std::move(reason);
  touch();
}

std::string FakeScheduler::reason() {
  const std::lock_guard lock(mutex_);
  return view_.reason;
}

void FakeScheduler::order(rpc::CheckpointStage::type stage, const std::string& id,
                          std::map<std::int32_t, std::int64_t> clocks) {
  const std::lock_guard lock(mutex_);
  view_.checkpoint.stage = stage;
  view_.checkpoint.id = id;
  view_.checkpoint.clocks = std::move(clocks);
  touch();
}

bool FakeScheduler::reported(const std::function<bool(const rpc::WorkerReport&)>& like) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kDeadline, [&] { return like(report_); });
}

void FakeScheduler::lose_server(int id) {
  const std::lock_guard lock(mutex_);
  view_.servers[static_cast<std::size_t>(id)].state = rpc::MemberState::DEAD;
  touch();
}

void FakeScheduler::stop_answering(Error error) {
  const std::lock_guard lock(mutex_);
  silence_ = std::move(error);
  changed_.notify_all();
}

std::optional<std::string> FakeScheduler::fault() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kDeadline, [this] { return fault_.has_value(); });
  return fault_;
}

std::optional<std::string> FakeScheduler::fault_so_far() {
  const std::lock_guard lock(mutex_);
  return fault_;
}

std::optional<rpc::WorkerReport> FakeScheduler::finished() {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kDeadline, [this] { return finished_.has_value(); });
  return finished_;
}

rpc::WorkerReport FakeScheduler::last_report() {
  const std::lock_guard lock(mutex_);
  return report_;
}

}  // namespace leeway::worker::testing
