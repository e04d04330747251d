#include "scheduler/launcher/launch.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <ctime>

#include "scheduler/launcher/job_runner.h"
#include "scheduler/launcher/process_guard.h"
#include "scheduler/launcher/programs.h"
#include "scheduler/launcher/report.h"
#include "scheduler/launcher/summary.h"
#include "scheduler/launcher/terminal.h"

namespace leeway::launcher {
namespace {

constexpr int kInterrupted = 130;
constexpr milliseconds kInterruptedOutput{100};

// Blocked in this process and every thread that it makes, read from the descriptor.
Fd open_signals() {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  Fd signals(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals) throw ConfigError("no descriptor for signals (more descriptors: ulimit -n)");
  return signals;
}

std::string default_log_dir() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  return fmt::format("leeway-logs/{:%Y%m%d-%H%M%S}-{}", local, ::getpid());
}

std::string interrupted_reason(const std::string& before, const std::string& now) {
  if (now.empty() || now == before) return "interrupted";
  return fmt::format("interrupted; checkpoint {} was written, --resume auto goes on from it", now);
}

class Run {
 public:
  Run(const LaunchPlan& plan, const std::map<std::string, std::string>& environment)
      : plan_(plan),
        signals_(open_signals()),
        terminal_(STDOUT_FILENO, STDERR_FILENO, ::isatty(STDOUT_FILENO) != 0),
        context_{.plan = plan,
                 .environment = environment,
                 .scheduler_path = find_program("leeway-scheduler", environment),
                 .server_path = find_program("leeway-server", environment),
                 .worker_path = find_program(plan.program.front(), environment),
                 .token = token(environment),
                 .log_dir = plan.run.log_dir.empty() ? default_log_dir() : plan.run.log_dir,
                 .signals = signals_.get(),
                 .terminal = terminal_,
                 .guard = guard_,
                 .not_ours = children_now()} {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    summary_.staleness_bound =
        plan.job.staleness.infinite() ? "inf" : std::to_string(plan.job.staleness.value);
    for (const std::string& note : plan.notes) terminal_.error_line("leeway-run: warning: " + note);
  }

  int run() {
    AttemptResult result;
    std::optional<JobSnapshot> failed;  // the last status of the start before
    std::string checkpoint_before;
    for (int attempt = 0;; ++attempt) {
      result = run_attempt(context_, attempt);
      summary_.exit_codes = result.exit_codes;
      if (attempt == 0 && result.first && result.first->last_checkpoint)
        checkpoint_before = result.first->last_checkpoint->id;
      if (result.first && result.last) {
        const auto restored =
            restored_checkpoint(attempt > 0 ? "auto" : plan_.run.resume, *result.first);
        if (failed) summary_.repeated_steps += steps_beyond(*failed, restored);
        summary_.add(restored, *result.last, result.seconds);
        failed = result.last;
      }
      if (result.failure && summary_.reason.empty()) summary_.reason = result.failure->reason;
      const bool again = result.failure && result.failure->restartable && !result.interrupted &&
                         summary_.restarts < static_cast<int>(plan_.run.max_restarts);
      if (!again) break;
      ++summary_.restarts;
      terminal_.error_line(
          fmt::format("leeway-run: {}; starting again from the last checkpoint "
                      "({} of {})",
                      failure_line(*result.failure), summary_.restarts, plan_.run.max_restarts));
    }
    return conclude(result, checkpoint_before);
  }

 private:
  static std::string token(const std::map<std::string, std::string>& environment) {
    const auto it = environment.find("LEEWAY_TOKEN");
    return it == environment.end() || it->second.empty() ? random_token() : it->second;
  }

  int conclude(const AttemptResult& result, const std::string& checkpoint_before) {
    summary_.ok = result.ok;
    if (result.ok) summary_.reason.clear();
    if (result.interrupted)
      summary_.reason = interrupted_reason(checkpoint_before, summary_.last_checkpoint);
    if (result.ran || result.ok) {
      terminal_.line(fmt::format("{} with {} and {}:", result.ok ? "done" : "ended",
                                 counted(plan_.run.servers, "server"),
                                 counted(plan_.run.workers, "worker")));
      for (const std::string& line :
           end_lines(summary_, plan_.run.checkpoint_dir, context_.log_dir))
        terminal_.line(line);
    }
    if (result.interrupted) {
      terminal_.error_line("leeway-run: " + summary_.reason);
    } else if (result.failure) {
      terminal_.error_line(fmt::format("leeway-run: FAILED: {}; logs in {}",
                                       failure_line(*result.failure), context_.log_dir));
    }
    if (!plan_.run.summary.empty()) write_summary(summary_, plan_.run.summary);
    // Whoever pressed Ctrl-C does not wait for a pager.
    terminal_.drain(signals_.get(),
                    result.interrupted ? std::optional(kInterruptedOutput) : std::nullopt);
    return result.ok ? 0 : result.interrupted ? kInterrupted : 1;
  }

  const LaunchPlan& plan_;
  Fd signals_;
  Terminal terminal_;
  ProcessGuard guard_;
  JobContext context_;
  Summary summary_;
};

}  // namespace

int launch(const LaunchPlan& plan, const std::map<std::string, std::string>& environment) {
  if (!plan.run.summary.empty()) check_summary_target(plan.run.summary);
  try {
    return Run(plan, environment).run();
  } catch (const ConfigError& error) {
    if (!plan.run.summary.empty()) {
      Summary summary;
      summary.reason = error.what();
      write_summary(summary, plan.run.summary);
    }
    throw;
  }
}

}  // namespace leeway::launcher
