// A whole job in real processes, for tests: runs the real leeway-run of the build tree, watches
// what it prints, kills whom it is told to kill, reads the summary, and leaves nothing behind.
//
//   Job job;
//   job.servers(2).workers(3).flag("--staleness", "2").program({"small_worker", "--steps", "50"});
//   job.start();
//   job.wait_for("worker.1] step 10");
//   job.kill_member("worker.1", SIGKILL);
//   const JobResult& result = job.finish();
//
// Programs are found through LEEWAY_BIN_PATH, which meson sets. Every wait has a deadline; one that
// passes fails the test with what the job had printed. Called from the test's thread; a second
// thread of its own reads the output. The directory of a Job lives as long as it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace leeway::cluster {

using std::chrono::seconds;

// --summary, parsed. A number that the file has as null is NaN here.
struct JobSummary {
  std::string text;  // as it was written
  std::string result, reason, staleness_bound, last_checkpoint;
  long steps = -1, samples = -1, skipped_steps = -1, restarts = -1, repeated_steps = -1;
  long max_observed = -1, violations = -1;
  double seconds = -1;
  std::vector<long> histogram;
  std::map<std::string, int> exit_codes;
  std::map<std::string, double> metrics;
};

struct JobResult {
  int exit_code = -1;  // a signal is negative
  double seconds = 0;  // from start() to the end
  std::string output;  // both streams
  JobSummary summary;  // text "" = none was written
};

// A directory that is gone with its owner.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

class Job {
 public:
  Job();
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Job& servers(int count);
  Job& workers(int count);
  Job& flag(std::string name, std::string value);
  Job& set(const std::string& key, const std::string& value);
  Job& checkpoints(const std::filesystem::path& directory);
  Job& program(std::vector<std::string> command);
  Job& environment(std::string name, std::string value);
  Job& closed_streams();  // starts leeway-run with descriptors 0, 1 and 2 closed

  void start();
  // Until the output holds `text`.
  void wait_for(const std::string& text, seconds limit = seconds(60));
  std::string output() const;
  // As a pager that stands still; ends with this object.
  void stop_reading();
  // "HOST:PORT", once it serves.
  std::string scheduler_address();
  const std::string& token() const noexcept { return token_; }
  const std::filesystem::path& directory() const noexcept { return directory_.path(); }

  // The process of "worker.1", "server.0", "scheduler" or "leeway-run".
  pid_t pid_of(const std::string& member);
  void kill_member(const std::string& member, int signal);

  // Waits for the end. Fails the test when a process of the job is left then.
  const JobResult& finish(seconds limit = seconds(120));
  // start() and finish().
  const JobResult& run(seconds limit = seconds(120));
  // Processes that carry this job's token.
  std::vector<pid_t> processes() const;

 private:
  void read_output();
  [[noreturn]] void give_up(const std::string& why);

  TemporaryDirectory directory_;
  std::string token_;
  std::vector<std::string> flags_;
  std::vector<std::string> program_;
  std::map<std::string, std::string> environment_;
  bool closed_streams_ = false;
  pid_t pid_ = -1;
  int output_fd_ = -1;
  std::chrono::steady_clock::time_point started_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string output_;   // guarded by mutex_
  bool closed_ = false;  // guarded by mutex_: nobody holds the pipe any more
  bool reads_ = true;    // guarded by mutex_
  std::thread reader_;
  std::optional<JobResult> result_;
};

// A program of the build tree or of the system: exit code and output of both streams.
struct CommandResult {
  int exit_code = -1;
  std::string output;
};
CommandResult run_command(const std::vector<std::string>& command,
                          const std::map<std::string, std::string>& environment = {},
                          seconds limit = seconds(60));

// leeway-ckpt inspect --digest.
std::string checkpoint_digest(const std::filesystem::path& directory);

}  // namespace leeway::cluster
