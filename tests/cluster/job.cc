#include "tests/cluster/job.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

namespace leeway::cluster {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string bin_path() {
  const char* path = std::getenv("LEEWAY_BIN_PATH");
  if (path == nullptr)
    throw std::runtime_error(
        "LEEWAY_BIN_PATH is not set: run this through meson test or tests/run");
  return path;
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  std::stringstream directories(bin_path());
  for (std::string directory; std::getline(directories, directory, ':');)
    if (::access((directory + "/" + name).c_str(), X_OK) == 0) return directory + "/" + name;
  return name;
}

// Its own process group; both streams into one pipe, whose read end is returned.
std::pair<pid_t, int> spawn(const std::vector<std::string>& command,
                            const std::map<std::string, std::string>& environment) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  std::vector<std::string> arguments = command;
  arguments.front() = find_program(command.front());
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  std::map<std::string, std::string> variables = environment;
  std::vector<std::string> texts;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (!variables.contains(text.substr(0, text.find('=')))) texts.push_back(text);
  }
  for (const auto& [name, value] : variables) texts.push_back(name + "=" + value);
  std::vector<char*> environment_pointers;
  for (std::string& text : texts) environment_pointers.push_back(text.data());
  environment_pointers.push_back(nullptr);

  const pid_t pid = ::fork();
  if (pid < 0) throw std::runtime_error("no process");
  if (pid == 0) {
    ::setpgid(0, 0);
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::execvpe(pointers[0], pointers.data(), environment_pointers.data());
    ::_exit(127);
  }
  ::setpgid(pid, pid);
  ::close(ends[1]);
  return {pid, ends[0]};
}

// Reaps `pid` when it ends before the deadline.
std::optional<int> wait_until(pid_t pid, Clock::time_point deadline) {
  while (true) {
    int status = 0;
    const pid_t got = ::waitpid(pid, &status, WNOHANG);
    if (got == pid) return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    if (got < 0 || Clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

double number(const nlohmann::json& value) {
  return value.is_null() ? std::nan("") : value.get<double>();
}
std::string text_or_empty(const nlohmann::json& value) {
  return value.is_null() ? "" : value.is_string() ? value.get<std::string>() : value.dump();
}

JobSummary parse_summary(const std::string& text) {
  const auto json = nlohmann::json::parse(text);  // refuses NaN and Infinity
  JobSummary s{.text = text};
  s.result = json.at("result");
  s.reason = text_or_empty(json.at("reason"));
  s.steps = json.at("steps");
  s.samples = json.at("samples");
  s.seconds = number(json.at("seconds"));
  s.skipped_steps = json.at("skipped_steps");
  s.restarts = json.at("restarts");
  s.repeated_steps = json.at("repeated_steps");
  const auto& staleness = json.at("staleness");
  s.staleness_bound = text_or_empty(staleness.at("bound"));
  s.max_observed = staleness.at("max_observed");
  s.violations = staleness.at("violations");
  s.histogram = staleness.at("histogram").get<std::vector<long>>();
  s.last_checkpoint = text_or_empty(json.at("last_checkpoint"));
  s.exit_codes = json.at("exit_codes").get<std::map<std::string, int>>();
  for (const auto& [name, value] : json.at("metrics").items()) s.metrics[name] = number(value);
  return s;
}

std::string random_token() {
  std::random_device random;
  std::ostringstream text;
  for (int i = 0; i < 4; ++i) text << std::hex << random();
  return "test" + text.str();
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  std::string pattern = (fs::temp_directory_path() / "leeway-cluster.XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary directory");
  path_ = pattern;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code error;
  fs::remove_all(path_, error);
}

Job::Job() : token_(random_token()) { environment_["LEEWAY_TOKEN"] = token_; }

Job::~Job() {
  if (pid_ > 0 && !result_) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  // A test that failed may leave members behind.
  for (const auto deadline = Clock::now() + seconds(5); Clock::now() < deadline;) {
    const auto left = processes();
    if (left.empty()) break;
    for (pid_t pid : left) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  {
    const std::lock_guard lock(mutex_);
    reads_ = true;
    changed_.notify_all();
  }
  if (reader_.joinable()) reader_.join();
  if (output_fd_ >= 0) ::close(output_fd_);
}

Job& Job::servers(int count) { return flag("--servers", std::to_string(count)); }
Job& Job::workers(int count) { return flag("--workers", std::to_string(count)); }
Job& Job::set(const std::string& key, const std::string& value) {
  return flag("--set", key + "=" + value);
}
Job& Job::checkpoints(const fs::path& directory) {
  return flag("--checkpoint-dir", directory.string());
}
Job& Job::flag(std::string name, std::string value) {
  flags_.push_back(std::move(name));
  flags_.push_back(std::move(value));
  return *this;
}
Job& Job::program(std::vector<std::string> command) {
  program_ = std::move(command);
  return *this;
}
Job& Job::environment(std::string name, std::string value) {
  environment_[std::move(name)] = std::move(value);
  return *this;
}

Job& Job::closed_streams() {
  closed_streams_ = true;
  return *this;
}

void Job::start() {
  std::vector<std::string> command = {"leeway-run", "--log-dir", (directory() / "logs").string(),
                                      "--summary", (directory() / "summary.json").string()};
  command.insert(command.end(), flags_.begin(), flags_.end());
  if (!program_.empty()) {
    command.emplace_back("--");
    command.insert(command.end(), program_.begin(), program_.end());
  }
  if (closed_streams_) {
    command.front() = find_program(command.front());
    command.insert(command.begin(), {"/bin/sh", "-c", "exec \"$0\" \"$@\" <&- >&- 2>&-"});
  }
  started_ = Clock::now();
  std::tie(pid_, output_fd_) = spawn(command, environment_);
  reader_ = std::thread([this] { read_output(); });
}

void Job::read_output() {
  char buffer[64 * 1024];
  while (true) {
    const ssize_t got = ::read(output_fd_, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    std::unique_lock lock(mutex_);
    if (got > 0) output_.append(buffer, static_cast<std::size_t>(got));
    if (got <= 0) closed_ = true;
    changed_.notify_all();
    if (got <= 0) return;
    changed_.wait(lock, [this] { return reads_; });
  }
}

std::string Job::output() const {
  const std::lock_guard lock(mutex_);
  return output_;
}

void Job::stop_reading() {
  const std::lock_guard lock(mutex_);
  reads_ = false;
}

void Job::give_up(const std::string& why) {
  throw std::runtime_error(why + "; the job had printed:\n" + output());
}

void Job::wait_for(const std::string& text, seconds limit) {
  std::unique_lock lock(mutex_);
  const bool there = changed_.wait_for(
      lock, limit, [&] { return closed_ || output_.find(text) != std::string::npos; });
  const bool found = output_.find(text) != std::string::npos;
  lock.unlock();
  if (!found) give_up((there ? "the job ended before '" : "no '") + text + "'");
}

std::string Job::scheduler_address() {
  wait_for("scheduler at ");
  const std::string text = output();
  const auto begin = text.find("scheduler at ") + std::strlen("scheduler at ");
  return text.substr(begin, text.find(',', begin) - begin);
}

pid_t Job::pid_of(const std::string& member) {
  if (member == "leeway-run") return pid_;
  if (member != "scheduler") {
    wait_for(", process ");
    for (const auto deadline = Clock::now() + seconds(10); Clock::now() < deadline;) {
      const std::string text = "\n" + output();
      static constexpr std::string_view kBefore = ", process ";
      const auto line = text.find("\n" + member + " ");
      const auto number = text.find(kBefore, line);
      if (line != std::string::npos && number < text.find('\n', line + 1))
        return std::stoi(text.substr(number + kBefore.size()));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    give_up("no process of " + member);
  }
  for (pid_t pid : processes())
    if (read_file("/proc/" + std::to_string(pid) + "/comm").starts_with("leeway-schedul"))
      return pid;
  give_up("no process of the scheduler");
}

void Job::kill_member(const std::string& member, int signal) { ::kill(pid_of(member), signal); }

const JobResult& Job::finish(seconds limit) {
  const auto code = wait_until(pid_, Clock::now() + limit);
  if (!code) give_up("the job did not end in time");
  JobResult result{.exit_code = *code,
                   .seconds = std::chrono::duration<double>(Clock::now() - started_).count()};
  // A guard or a member that is just going is no leftover; one that stays is.
  const auto deadline = Clock::now() + seconds(2);
  while (!processes().empty() && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK_MESSAGE(processes().empty(), "processes are left");
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, seconds(2), [&] { return closed_; });
    result.output = output_;
  }
  const std::string text = read_file(directory() / "summary.json");
  if (!text.empty()) result.summary = parse_summary(text);
  result_ = std::move(result);
  return *result_;
}

const JobResult& Job::run(seconds limit) {
  start();
  return finish(limit);
}

std::vector<pid_t> Job::processes() const {
  std::vector<pid_t> found;
  const std::string needle = "LEEWAY_TOKEN=" + token_;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string environment = read_file(entry.path() / "environ");
    if (environment.find(needle) != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

CommandResult run_command(const std::vector<std::string>& command,
                          const std::map<std::string, std::string>& environment, seconds limit) {
  const auto [pid, fd] = spawn(command, environment);
  CommandResult result;
  std::thread reader([&result, fd = fd] {
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(fd, buffer, sizeof buffer)) > 0;)
      result.output.append(buffer, static_cast<std::size_t>(got));
  });
  const auto code = wait_until(pid, Clock::now() + limit);
  ::kill(-pid, SIGKILL);
  if (!code) ::waitpid(pid, nullptr, 0);
  reader.join();
  ::close(fd);
  if (!code) throw std::runtime_error(command.front() + " did not end in time:\n" + result.output);
  result.exit_code = *code;
  return result;
}

std::string checkpoint_digest(const fs::path& directory) {
  const CommandResult result =
      run_command({"leeway-ckpt", "inspect", "--digest", directory.string()});
  REQUIRE_MESSAGE(result.exit_code == 0, result.output);
  return result.output.substr(0, result.output.find('\n'));
}

}  // namespace leeway::cluster
