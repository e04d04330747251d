#include "scheduler/launcher/status_poller.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "scheduler/client.h"

namespace leeway::launcher {
namespace {

constexpr milliseconds kCallTimeout{1000};
constexpr int kTellTries = 3;

Phase parse_phase(const std::string& text) {
  static const std::map<std::string, Phase> phases = {
      {"GATHERING", Phase::kGathering}, {"PLANNED", Phase::kPlanned}, {"RUNNING", Phase::kRunning},
      {"STOPPING", Phase::kStopping},   {"DONE", Phase::kDone},       {"FAILED", Phase::kFailed}};
  const auto it = phases.find(text);
  return it == phases.end() ? Phase::kUnknown : it->second;
}

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

WorkerFigures figures(const rpc::WorkerReport& from) {
  return {.clock = from.clock,
          .samples = from.samples,
          .skipped_steps = from.skipped_steps,
          .loss = from.loss,
          .epoch = from.epoch,
          .staleness_violations = from.staleness_violations,
          .staleness_histogram = from.staleness_histogram,
          .metrics = from.metrics};
}

MemberSnapshot convert(const rpc::MemberStatus& from, Role role) {
  MemberSnapshot to{.member = {role, from.id},
                    .state = upper(from.state),
                    .host = from.host,
                    .pid = from.pid,
                    .incarnation = from.incarnation,
                    .first_clock = from.first_clock,
                    .provider = from.fabric.provider,
                    .device = from.fabric.device,
                    .address = from.fabric.printable,
                    .error = from.error,
                    .push_bytes_per_second = from.push_bytes_per_second,
                    .pull_bytes_per_second = from.pull_bytes_per_second,
                    .worker = std::nullopt};
  if (!from.__isset.worker) return to;
  to.worker = figures(from.worker);
  return to;
}

CheckpointSnapshot convert(const rpc::CheckpointInfo& from) {
  return {.id = from.id, .clocks = {from.clocks.begin(), from.clocks.end()}};
}

JobSnapshot convert(const rpc::JobStatus& from, TimePoint asked_at) {
  JobSnapshot to{.asked_at = asked_at,
                 .phase = parse_phase(upper(from.phase)),
                 .reason = from.reason,
                 .seconds_running = from.seconds_running,
                 .samples_per_second = from.samples_per_second,
                 .replaced = figures(from.replaced),
                 .settings = from.settings,
                 .servers = {},
                 .workers = {},
                 .last_checkpoint = std::nullopt,
                 .checkpoints = {}};
  for (const auto& one : from.servers) to.servers.push_back(convert(one, Role::kServer));
  for (const auto& one : from.workers) to.workers.push_back(convert(one, Role::kWorker));
  if (from.__isset.last_checkpoint) to.last_checkpoint = convert(from.last_checkpoint);
  return to;
}

}  // namespace

StatusPoller::StatusPoller(std::string address, std::string token, milliseconds interval)
    : token_(std::move(token)),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      interval_(interval) {
  thread_ = std::jthread(
      [this, address = std::move(address)](const std::stop_token& stop) { run(stop, address); });
}

StatusPoller::~StatusPoller() {
  thread_.request_stop();
  wake_.notify_all();
}

void StatusPoller::ask() {
  const std::lock_guard lock(mutex_);
  asked_ = true;
  wake_.notify_all();
}

void StatusPoller::set_interval(milliseconds interval) {
  const std::lock_guard lock(mutex_);
  interval_ = interval;
  wake_.notify_all();
}

void StatusPoller::enqueue(Call call) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(std::move(call));
  wake_.notify_all();
}

void StatusPoller::lost(const Member& member, const std::string& why, bool fails_job) {
  enqueue([this, member, why, fails_job](scheduler::Client& client) {
    const auto role = member.role == Role::kServer ? rpc::Role::SERVER : rpc::Role::WORKER;
    for (int i = 0; i < kTellTries; ++i) {
      const auto status = client.lost(token_, role, member.id, why, fails_job);
      if (status || !status.error().retryable()) return;
    }
  });
}

void StatusPoller::stop(const std::string& reason) {
  enqueue([this, reason](scheduler::Client& client) {
    for (int i = 0; i < kTellTries; ++i) {
      const auto status = client.stop(token_, reason);
      if (status || !status.error().retryable()) return;
    }
  });
}

std::vector<JobSnapshot> StatusPoller::take() {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(event_.get(), &count, sizeof count);
  const std::lock_guard lock(mutex_);
  return std::exchange(arrived_, {});
}

void StatusPoller::poll_status(scheduler::Client& client) {
  const TimePoint asked_at = MonotonicClock::now();
  const auto status = client.status();
  if (!status) return;
  JobSnapshot snapshot = convert(*status, asked_at);
  if (std::exchange(first_, false))
    if (const auto checkpoints = client.checkpoints())
      for (const auto& one : *checkpoints) snapshot.checkpoints.push_back(convert(one));
  {
    const std::lock_guard lock(mutex_);
    arrived_.push_back(std::move(snapshot));
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
}

void StatusPoller::run(const std::stop_token& stop, const std::string& address) {
  scheduler::Client client(address, kCallTimeout);
  TimePoint last{};
  while (!stop.stop_requested()) {
    Call call;
    {
      std::unique_lock lock(mutex_);
      const auto something = [&] {
        return asked_ || !calls_.empty() || MonotonicClock::now() >= last + interval_;
      };
      wake_.wait_until(lock, stop, last + interval_, something);
      if (stop.stop_requested()) return;
      if (!calls_.empty()) {
        call = std::move(calls_.front());
        calls_.pop_front();
      } else {
        asked_ = false;
      }
    }
    if (call) {
      call(client);
    } else {
      last = MonotonicClock::now();
      poll_status(client);
    }
  }
}

}  // namespace leeway::launcher
