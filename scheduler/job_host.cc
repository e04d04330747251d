#include "scheduler/job_host.h"

#include <chrono>
#include <iterator>

namespace leeway::scheduler {
namespace {

constexpr milliseconds kTick{50};

std::uint64_t unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
}

}  // namespace

JobHost::JobHost(JobSetup setup, std::unique_ptr<storage::ManifestStore> store)
    : core_(std::move(setup), MonotonicClock::now()),
      store_(std::move(store)),
      ticker_([this](const std::stop_token& stop) { run(stop); }) {}

JobHost::~JobHost() {
  close();
  ticker_.request_stop();
  changed_.notify_all();
}

void JobHost::stop(const std::string& reason) {
  const bool over = with([&](JobCore& core, TimePoint now) {
    const bool was_over = core.over();
    core.stop(reason, now);
    return was_over;
  });
  if (over) release();
}

void JobHost::close() {
  std::lock_guard lock(mutex_);
  closing_ = true;
  changed_.notify_all();
}

void JobHost::release() {
  std::lock_guard lock(mutex_);
  released_ = true;
  changed_.notify_all();
}

void JobHost::settle(std::unique_lock<std::mutex>& lock) {
  Effects effects = core_.take_effects();
  if (effects.commit) work_.commit = std::move(effects.commit);
  std::move(effects.forget.begin(), effects.forget.end(), std::back_inserter(work_.forget));
  changed_.notify_all();
  lock.unlock();
  for (const std::string& line : effects.log) log::info("{}", line);
}

void JobHost::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    with([](JobCore& core, TimePoint now) {
      core.tick(now);
      return 0;
    });
    Effects work;
    {
      std::unique_lock lock(mutex_);
      const auto has_work = [this] { return work_.commit || !work_.forget.empty(); };
      changed_.wait_until(lock, MonotonicClock::now() + kTick,
                          [&] { return has_work() || stop.stop_requested(); });
      work = std::exchange(work_, Effects{});
    }
    carry_out(std::move(work));
  }
}

void JobHost::carry_out(Effects work) {
  for (const std::string& id : work.forget)
    if (auto status = store_->forget(id); !status)
      log::warning("checkpoint {} stays on disk: {}", id, status.error().message);
  if (!work.commit) return;
  work.commit->created_unix_s = unix_seconds();
  const Status status = store_->commit(*work.commit);
  with([&](JobCore& core, TimePoint now) {
    core.committed(*work.commit, status, now);
    return 0;
  });
}

rpc::Phase::type JobHost::wait_over(milliseconds linger) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return core_.over() || closing_; });
  changed_.wait_until(lock, MonotonicClock::now() + linger,
                      [this] { return released_ || closing_; });
  return core_.phase();
}

}  // namespace leeway::scheduler
