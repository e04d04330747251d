// What leeway-run does when something happens to its children: a plain state machine. Events and
// the time go in, effects come out; a shell (job_runner.h) carries them out.
//
// The rules: a worker that was killed from outside, or that ends after the scheduler declared it
// dead, does not fail the job as long as others finish; a worker that fails by itself does, and so
// does a server or the scheduler that ends early. Of several endings the first counts as the cause,
// and what the scheduler says of it counts more than an exit code: a member that ends because the
// job failed is no cause. Called from one thread.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/monotonic.h"
#include "scheduler/launcher/member.h"
#include "scheduler/launcher/snapshot.h"

namespace leeway::launcher {

struct Effect {
  enum class Kind {
    kStartMembers,  // the scheduler listens: start servers and workers
    kTellLost,      // to the scheduler: `member` ended, `text` says how
    kAskStatus,     // now, not at the next tick of the poller
    kStopJob,       // the scheduler's stop(), reason `text`
    kSignal,        // `signal` to the group of `member`
    kResume,        // SIGCONT to `member`
    kSay,           // a line for the person
    kWarn,
  };
  Kind kind = Kind::kSay;
  std::string text = {};
  Member member = {};
  bool fails_job = false;  // kTellLost
  int signal = 0;
};
using Effects = std::vector<Effect>;

struct Failure {
  std::string who;     // "worker.1", "scheduler"
  std::string reason;  // one line that says who and why
  double seconds = 0;  // since the start
  std::optional<std::int64_t> step;
  bool restartable = false;  // somebody vanished: the same job may well go on from a checkpoint
};

class SupervisorCore {
 public:
  struct Config {
    std::uint32_t servers = 1, workers = 1;
    bool waits_for_joiners = false;  // also without any worker
    bool checkpoints = false;
    std::map<int, std::vector<double>> pauses;  // worker -> seconds, in order of steps
  };

  SupervisorCore(Config config, TimePoint now);

  Effects scheduler_listens(TimePoint now);
  // `words`: the last thing it said in its log, "" for nothing.
  Effects ended(TimePoint now, const Member& member, ProcessEnd end, const std::string& words);
  Effects stopped(TimePoint now, const Member& member, int signal);
  Effects status(TimePoint now, const JobSnapshot& snapshot);
  Effects interrupted(TimePoint now);
  Effects tick(TimePoint now);
  TimePoint next_deadline() const;  // when tick() is due, TimePoint::max() = never

  bool over() const noexcept { return live_.empty(); }
  bool ok() const noexcept { return !failure_ && !interrupted_at_; }
  bool was_interrupted() const noexcept { return interrupted_at_.has_value(); }
  const std::optional<Failure>& failure() const noexcept { return failure_; }
  const std::map<Member, ProcessEnd>& ends() const noexcept { return ends_; }

 private:
  // An ending that is a failure unless the scheduler knows an earlier one.
  struct Suspect {
    Member member;
    std::string why;  // "worker.1 exited with code 3: ..."
    TimePoint at;
    bool restartable = false;
    bool ended_well = false;  // exit code 0, but is it done?
  };

  bool alive(const Member& member) const { return live_.contains(member); }
  bool scheduler_alive() const { return alive(Member{}); }
  bool only_scheduler_left() const { return live_.size() == 1 && scheduler_alive(); }
  bool finished(const Member& member) const;
  bool declared_dead(const Member& member) const;  // by the scheduler
  bool replaced(const Member& member) const;       // by another that joined
  bool others_train() const;                       // who are not ours
  void suspect(Suspect suspect, Effects& effects);
  void judge(const Suspect& suspect);
  void fail(std::string who, std::string reason, TimePoint at, bool restartable);
  void scheduler_ended(TimePoint now, ProcessEnd end, const std::string& words);
  void server_ended(TimePoint now, const Member& member, ProcessEnd end, const std::string& words,
                    Effects& effects);
  void worker_ended(TimePoint now, const Member& member, ProcessEnd end, const std::string& words,
                    Effects& effects);
  void root_cause(const Member& member, ProcessEnd end);
  void add_words(const Member& member, const std::string& words);
  void close_if_alone(TimePoint now, Effects& effects);
  void signal_all(int signal, Effects& effects) const;
  void begin_killing(TimePoint now, milliseconds patience, Effects& effects);
  std::string names_of_live() const;  // without the scheduler
  std::optional<Member> first_live(Role role) const;
  TimePoint alone_deadline() const;  // of a scheduler that is left alone

  const Config config_;
  const TimePoint start_;
  std::set<Member> live_;
  std::map<Member, ProcessEnd> ends_;
  std::set<Member> lost_;  // workers that ended without failing the job
  bool listening_ = false;
  JobSnapshot last_;
  std::map<Member, std::int64_t> ours_;  // the first incarnation that a status had
  std::vector<Suspect> suspects_;
  std::optional<Failure> failure_;
  bool failure_from_scheduler_ = false;  // a cause that we see ourselves may still replace it
  std::optional<TimePoint> interrupted_at_;
  TimePoint answered_at_{};  // the last status came
  bool checkpoint_awaited_ = false, checkpoint_said_ = false, interrupted_twice_ = false;
  std::optional<TimePoint> done_at_;       // the scheduler said DONE
  std::optional<TimePoint> alone_at_;      // only the scheduler is left
  bool stop_sent_ = false;                 // to that one
  std::optional<TimePoint> terminate_at_;  // SIGTERM to all
  std::optional<TimePoint> kill_at_;       // SIGKILL to all
  bool killing_ = false;                   // we signalled: endings say nothing any more
  std::vector<std::pair<TimePoint, Member>> resume_at_;
  std::map<int, std::size_t> pauses_taken_;
};

}  // namespace leeway::launcher
