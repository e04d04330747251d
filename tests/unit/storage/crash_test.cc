#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <random>
#include <thread>

#include "test_job.h"

namespace leeway::storage {
namespace {

using testing::TempDir;
using testing::TestModel;

// The program that saves, built beside this one. Killed, if it still runs, when this ends.
class SaveLoop {
 public:
  SaveLoop(const std::string& directory, std::uint64_t first) {
    const auto self = std::filesystem::read_symlink("/proc/self/exe");
    const std::string program = (self.parent_path() / "storage_save_loop").string();
    std::array<int, 2> pipe{};
    if (pipe2(pipe.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
    std::string number = std::to_string(first);
    std::string dir = directory;
    std::string name = program;
    char* argv[] = {name.data(), dir.data(), number.data(), nullptr};
    const int failed = posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe[1]);
    out_ = fdopen(pipe[0], "r");
    if (failed != 0) throw std::runtime_error("cannot start " + program);
  }
  ~SaveLoop() {
    kill_now();
    fclose(out_);
  }
  SaveLoop(const SaveLoop&) = delete;
  SaveLoop& operator=(const SaveLoop&) = delete;

  // "committed 12", or nothing at its end.
  std::string line() {
    std::array<char, 100> text{};
    if (fgets(text.data(), text.size(), out_) == nullptr) return "";
    std::string line(text.data());
    line.pop_back();
    return line;
  }

  void kill_now() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  FILE* out_ = nullptr;
};

std::uint64_t number_of(const std::string& line) {
  return std::stoull(line.substr(line.find(' ')));
}

TEST_CASE("K2 crash: kill -9 during saves, the newest whole checkpoint is there") {
  TempDir dir;
  const std::uint64_t seed = 2026;
  std::mt19937_64 random(seed);
  CAPTURE(seed);
  std::uint64_t committed = 0;
  std::uint64_t step = 1;
  for (int round = 0; round < 5; ++round) {
    CAPTURE(round);
    {
      SaveLoop loop(dir.path(), step);
      const std::uint64_t lines = 1 + random() % 12;
      for (std::uint64_t i = 0; i < lines; ++i) {
        const std::string line = loop.line();
        REQUIRE(!line.empty());
        step = number_of(line);
        if (line.starts_with("committed")) committed = step;
      }
      // Somewhere within what comes after that line.
      const auto moment =
          std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 20'000);
      while (std::chrono::steady_clock::now() < moment) std::this_thread::yield();
      loop.kill_now();
      for (std::string line = loop.line(); !line.empty(); line = loop.line()) {
        if (line.find(' ') == std::string::npos) break;
        step = number_of(line);
        if (line.starts_with("committed")) committed = step;
      }
    }
    const auto reader = value_or_throw(CheckpointReader::open(dir.path()));
    if (committed == 0 && reader->manifests().empty()) continue;
    const Manifest newest = value_or_throw(reader->manifest(""));
    const std::uint64_t saved = std::stoull(newest.id.substr(5));
    CHECK(saved >= committed);  // one more when it was killed before it could say so
    CHECK(reader->verify(newest));
    CHECK(testing::holds(*reader, newest, TestModel::small(saved)));
    committed = saved;
    step = saved + 1;
  }
  CHECK(committed > 0);
  const auto store = value_or_throw(ShardStore::open(dir.path(), ServerId(0)));
  CHECK(std::filesystem::is_empty(dir.path("server-000/incoming")));
}

TEST_CASE("K6 crash: another process on the directory is named, and its end frees it") {
  TempDir dir;
  SaveLoop loop(dir.path(), 1);
  REQUIRE(loop.line() == "begin 1");
  for (const Error& error : {ManifestStore::open(dir.path()).error(),
                             ShardStore::open(dir.path(), ServerId(1)).error()}) {
    CHECK(error.code == Code::kRefused);
    CHECK(error.message.find("in use by process " + std::to_string(loop.pid()) +
                             " (storage_save") != std::string::npos);
  }
  loop.kill_now();
  CHECK(ManifestStore::open(dir.path()));
  CHECK(ShardStore::open(dir.path(), ServerId(1)));
}

}  // namespace
}  // namespace leeway::storage
