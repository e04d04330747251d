#include "scheduler/launcher/job_runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <memory>
#include <utility>
#include <vector>

#include "scheduler/launcher/report.h"
#include "scheduler/launcher/status_poller.h"

namespace leeway::launcher {
namespace {

constexpr milliseconds kFastPoll{100};  // before RUNNING and while stopping
constexpr milliseconds kPoll{500};
constexpr milliseconds kPlainProgress{5000};
// A start that fails at once is told in one line, so what members say is held back for so long.
constexpr milliseconds kQuietStart{3000};
constexpr std::size_t kMostHeld = 1 << 19;

SupervisorCore::Config core_config(const LaunchPlan& plan, int attempt) {
  SupervisorCore::Config config{.servers = plan.run.servers,
                                .workers = plan.run.workers,
                                .waits_for_joiners = plan.job.min_workers > 0,
                                .checkpoints = !plan.run.checkpoint_dir.empty(),
                                .pauses = {}};
  if (attempt > 0) return config;
  std::vector<Injection> pauses;
  for (const Injection& injection : plan.injections)
    if (injection.kind == Injection::Kind::kPause) pauses.push_back(injection);
  std::stable_sort(pauses.begin(), pauses.end(),
                   [](const auto& a, const auto& b) { return a.at_step < b.at_step; });
  for (const Injection& pause : pauses)
    config.pauses[static_cast<int>(pause.index)].push_back(pause.seconds);
  return config;
}

class Attempt {
 public:
  Attempt(const JobContext& context, int attempt)
      : context_(context),
        attempt_(attempt),
        core_(core_config(context.plan, attempt), MonotonicClock::now()),
        logs_(
            context.log_dir,
            [this](const std::string& who, LogMultiplexer::Stream stream, std::string_view line) {
              show(who, stream, line);
            },
            [this](const std::string& text) { say(true, text); }) {}

  // Nothing outlives this, however it is left.
  ~Attempt() {
    for (const auto& [pid, child] : children_) {
      ::kill(-pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
      context_.guard.forget(pid);
    }
    kill_adopted(context_.not_ours);
    ::unlink(job_file().c_str());
  }

  AttemptResult run() {
    start_scheduler();
    while (!core_.over()) {
      wait();
      handle_signals();
      read_outputs();
      reap();
      if (poller_) take_statuses();
      const TimePoint now = MonotonicClock::now();
      carry_out(core_.tick(now));
      if (now >= quiet_until_ && !core_.failure()) end_quiet();
      context_.terminal.refresh();
    }
    // Whoever failed before anything ran has said why already; the rest is in the logs.
    if (!core_.failure()) end_quiet();
    context_.terminal.progress("");
    return result();
  }

 private:
  struct Child {
    Member member;
    ChildProcess process;
  };

  void start(const Member& member, std::vector<std::string> command,
             const std::map<std::string, std::string>& more) {
    const std::string who = to_string(member);
    logs_.open(who);
    auto environment = context_.environment;
    for (const char* name : {"LEEWAY_SCHEDULER", "LEEWAY_INJECT"}) environment.erase(name);
    environment["LEEWAY_TOKEN"] = context_.token;
    for (const auto& [name, value] : more) environment[name] = value;
    ChildProcess process = spawn({.command = std::move(command), .environment = environment});
    const pid_t pid = process.pid;
    context_.guard.watch(pid);
    pids_[member] = pid;
    children_[pid] = {member, std::move(process)};
  }

  void start_scheduler() {
    const RunSettings& run = context_.plan.run;
    std::vector<std::string> command = {context_.scheduler_path,
                                        "--listen",
                                        run.listen,
                                        "--servers",
                                        std::to_string(run.servers),
                                        "--workers",
                                        std::to_string(run.workers)};
    const auto add = [&](std::initializer_list<std::string> more) {
      command.insert(command.end(), more);
    };
    if (run.max_workers > 0) add({"--max-workers", std::to_string(run.max_workers)});
    if (!run.checkpoint_dir.empty()) add({"--checkpoint-dir", run.checkpoint_dir});
    add({"--resume", attempt_ > 0 ? "auto" : run.resume});
    for (const auto& [name, value] : context_.plan.job_set)
      add({"--set", fmt::format("{}={}", name, value)});
    start(Member{}, std::move(command), {});
  }

  void start_members() {
    const RunSettings& run = context_.plan.run;
    std::map<std::string, std::string> environment = {{"LEEWAY_SCHEDULER", address_},
                                                      {"LEEWAY_FABRIC", run.fabric.value},
                                                      {"LEEWAY_BIND", run.bind}};
    if (attempt_ == 0 && !context_.plan.inject.empty())
      environment["LEEWAY_INJECT"] = context_.plan.inject;
    for (std::uint32_t i = 0; i < run.servers; ++i)
      start({Role::kServer, static_cast<int>(i)},
            {context_.server_path, "--id", std::to_string(i), "--fabric", run.fabric.value,
             "--bind", run.bind},
            environment);
    std::vector<std::string> program = context_.plan.program;
    program.front() = context_.worker_path;
    environment["WORLD_SIZE"] = std::to_string(std::max(run.workers, run.max_workers));
    for (std::uint32_t i = 0; i < run.workers; ++i) {
      environment["RANK"] = environment["LOCAL_RANK"] = std::to_string(i);
      start({Role::kWorker, static_cast<int>(i)}, program, environment);
    }
  }

  void wait() {
    std::vector<pollfd> fds = {{context_.signals, POLLIN, 0}};
    if (poller_) fds.push_back({poller_->descriptor(), POLLIN, 0});
    for (const auto& [pid, child] : children_)
      for (const Fd* fd : {&child.process.out, &child.process.err})
        if (*fd) fds.push_back({fd->get(), POLLIN, 0});
    for (const pollfd& output : context_.terminal.waits()) fds.push_back(output);
    int timeout = -1;
    const TimePoint next = core_.next_deadline();
    if (next != TimePoint::max()) {
      const auto left = std::chrono::ceil<milliseconds>(next - MonotonicClock::now()).count();
      timeout = static_cast<int>(std::clamp<long>(left, 0, 60000));
    }
    ::poll(fds.data(), fds.size(), timeout);
  }

  void handle_signals() {
    signalfd_siginfo info{};
    while (::read(context_.signals, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD) continue;  // reap() looks every round
      if (poller_) poller_->set_interval(kFastPoll);
      carry_out(core_.interrupted(MonotonicClock::now()));
    }
  }

  void read_outputs() {
    for (auto& [pid, child] : children_) drain(child);
    // Only now: starting members adds children.
    if (address_.empty() || poller_) return;
    print(LogMultiplexer::Stream::kOut,
          fmt::format("scheduler at {}, {}, {}; logs in {}", address_,
                      counted(context_.plan.run.servers, "server"),
                      counted(context_.plan.run.workers, "worker"), context_.log_dir));
    write_job_file();
    const auto effects = core_.scheduler_listens(MonotonicClock::now());
    // Forking comes before the first thread of ours.
    for (const Effect& effect : effects)
      if (effect.kind == Effect::Kind::kStartMembers) start_members();
    poller_ = std::make_unique<StatusPoller>(address_, context_.token, kFastPoll);
    carry_out(effects);
  }

  // What is there now; at the end of a stream its descriptor is closed.
  void drain(Child& child) {
    const std::string who = to_string(child.member);
    for (const auto stream : {LogMultiplexer::Stream::kOut, LogMultiplexer::Stream::kErr}) {
      Fd& fd = stream == LogMultiplexer::Stream::kOut ? child.process.out : child.process.err;
      char buffer[64 * 1024];
      // Bounded, so that one chatty member cannot keep us from the others.
      for (int round = 0; fd && round < 16; ++round) {
        const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) break;
        if (got <= 0) {
          fd.reset();
          break;
        }
        logs_.feed(who, stream, {buffer, static_cast<std::size_t>(got)});
      }
    }
  }

  void reap() {
    while (const auto news = next_child_news()) {
      const auto it = children_.find(news->pid);
      if (it == children_.end()) continue;  // a grandchild that was handed to us
      const Member member = it->second.member;
      if (!news->end) {
        carry_out(core_.stopped(MonotonicClock::now(), member, news->stop_signal));
        continue;
      }
      drain(it->second);
      logs_.close(to_string(member));
      context_.guard.forget(news->pid);
      children_.erase(it);
      if (member.role == Role::kWorker) last_worker_end_ = MonotonicClock::now();
      carry_out(core_.ended(MonotonicClock::now(), member, *news->end,
                            logs_.last_words(to_string(member))));
    }
  }

  void take_statuses() {
    for (JobSnapshot& snapshot : poller_->take()) {
      if (!result_.first) result_.first = snapshot;
      if (snapshot.seconds_running > 0 && !running_since_)
        running_since_ =
            snapshot.asked_at - std::chrono::duration_cast<Duration>(
                                    std::chrono::duration<double>(snapshot.seconds_running));
      show_progress(snapshot);
      carry_out(core_.status(MonotonicClock::now(), snapshot));
      result_.last = std::move(snapshot);
    }
  }

  void show_progress(const JobSnapshot& snapshot) {
    const TimePoint now = MonotonicClock::now();
    if (snapshot.phase == Phase::kRunning && !started_said_) {
      started_said_ = true;
      end_quiet();
      shown_at_ = now;
      poller_->set_interval(kPoll);
      for (const std::string& line : start_lines(snapshot)) context_.terminal.line(line);
    }
    if (snapshot.phase != Phase::kRunning) return;
    if (context_.terminal.interactive()) {
      context_.terminal.progress(progress_line(result_.last, snapshot));
    } else if (now >= shown_at_ + kPlainProgress) {
      context_.terminal.line(progress_line(shown_, snapshot));
      shown_at_ = now;
      shown_ = snapshot;
    }
  }

  void carry_out(const Effects& effects) {
    for (const Effect& effect : effects) {
      switch (effect.kind) {
        case Effect::Kind::kStartMembers:
          break;  // see read_outputs()
        case Effect::Kind::kTellLost:
          if (poller_) poller_->lost(effect.member, effect.text, effect.fails_job);
          break;
        case Effect::Kind::kAskStatus:
          if (poller_) poller_->ask();
          break;
        case Effect::Kind::kStopJob:
          if (poller_) poller_->stop(effect.text);
          break;
        case Effect::Kind::kSignal:
          signal_group(effect.member, effect.signal);
          break;
        case Effect::Kind::kResume:
          if (alive(effect.member)) ::kill(pids_.at(effect.member), SIGCONT);
          break;
        case Effect::Kind::kSay:
          say(false, effect.text);
          break;
        case Effect::Kind::kWarn:
          say(true, effect.text);
          break;
      }
    }
  }

  bool alive(const Member& member) const {
    const auto it = pids_.find(member);
    return it != pids_.end() && children_.contains(it->second);
  }

  void signal_group(const Member& member, int signal) {
    if (!alive(member)) return;
    ::kill(-pids_.at(member), signal);
    ::kill(-pids_.at(member), SIGCONT);  // a stopped process hears nothing but SIGKILL
  }

  void show(const std::string& who, LogMultiplexer::Stream stream, std::string_view line) {
    static constexpr std::string_view kListening = "LISTENING ";
    if (who == "scheduler" && stream == LogMultiplexer::Stream::kOut && address_.empty() &&
        line.starts_with(kListening)) {
      address_ = line.substr(kListening.size());
      return;
    }
    print(stream, fmt::format("[{}] {}", who, printable(line)));
  }

  void print(LogMultiplexer::Stream stream, std::string text) {
    if (quiet_) {
      held_bytes_ += text.size();
      held_.emplace_back(stream, std::move(text));
      if (held_bytes_ > kMostHeld) end_quiet();
    } else if (stream == LogMultiplexer::Stream::kOut) {
      context_.terminal.line(text);
    } else {
      context_.terminal.error_line(text);
    }
  }

  void end_quiet() {
    quiet_ = false;
    for (auto& [stream, text] : std::exchange(held_, {})) print(stream, std::move(text));
  }

  void say(bool warning, const std::string& text) {
    if (warning) {
      context_.terminal.error_line("leeway-run: warning: " + text);
    } else {
      context_.terminal.line("leeway-run: " + text);
    }
  }

  std::string job_file() const { return context_.log_dir + "/job.env"; }

  // For leeway-admin, while the job runs: what changes a job needs its token.
  void write_job_file() {
    const std::string path = job_file();
    ::unlink(path.c_str());
    const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    const std::string text =
        fmt::format("LEEWAY_SCHEDULER={}\nLEEWAY_TOKEN={}\n", address_, context_.token);
    if (!file || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      say(true, fmt::format("{} cannot be written: {}", path, std::strerror(errno)));
  }

  AttemptResult result() {
    result_.ok = core_.ok();
    result_.interrupted = core_.was_interrupted() && !core_.failure();
    result_.failure = core_.failure();
    result_.ran = running_since_.has_value();
    for (const auto& [member, end] : core_.ends())
      result_.exit_codes[to_string(member)] = end.code();
    if (running_since_)
      result_.seconds = std::max(
          0.0, seconds_between(*running_since_, last_worker_end_.value_or(MonotonicClock::now())));
    return std::move(result_);
  }

  const JobContext& context_;
  const int attempt_;
  SupervisorCore core_;
  LogMultiplexer logs_;
  std::map<pid_t, Child> children_;
  std::map<Member, pid_t> pids_;
  std::string address_;  // of the scheduler, once it listens
  std::unique_ptr<StatusPoller> poller_;
  AttemptResult result_;
  std::optional<TimePoint> running_since_, last_worker_end_;
  bool started_said_ = false;
  bool quiet_ = true;
  const TimePoint quiet_until_ = MonotonicClock::now() + kQuietStart;
  std::vector<std::pair<LogMultiplexer::Stream, std::string>> held_;  // while quiet_
  std::size_t held_bytes_ = 0;
  TimePoint shown_at_{};
  std::optional<JobSnapshot> shown_;
};

}  // namespace

AttemptResult run_attempt(const JobContext& context, int attempt) {
  return Attempt(context, attempt).run();
}

}  // namespace leeway::launcher
