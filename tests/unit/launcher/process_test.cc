#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <thread>

#include "scheduler/launcher/child_process.h"
#include "scheduler/launcher/process_guard.h"
#include "scheduler/launcher/programs.h"
#include "tests/unit/launcher/scratch.h"

namespace leeway::launcher {
namespace {

using namespace std::chrono_literals;

// Everything until all writers are gone.
std::string read_all(const Fd& fd) {
  ::fcntl(fd.get(), F_SETFL, 0);
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(fd.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  return text;
}

ChildProcess shell(const std::string& script, std::map<std::string, std::string> more = {}) {
  more["PATH"] = "/usr/bin:/bin";
  return spawn({.command = {"/bin/sh", "-c", script}, .environment = std::move(more)});
}

ChildNews wait_for(pid_t pid) {
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (std::chrono::steady_clock::now() < deadline) {
    if (const auto news = next_child_news(); news && news->pid == pid) return *news;
    std::this_thread::sleep_for(1ms);
  }
  FAIL("no news of the child");
  return {};
}

bool group_exists(pid_t group) { return ::kill(-group, 0) == 0; }

bool soon(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (!condition() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(1ms);
  return condition();
}

bool gone_soon(pid_t group) {
  return soon([group] {
    while (next_child_news()) {
    }
    return !group_exists(group);
  });
}

}  // namespace

TEST_CASE("a child has its own group, its output apart, only the given environment, no input") {
  ChildProcess child = shell(
      "cat; echo out $ONE; echo err >&2; ps -o pgid= -p $$ >/dev/null; exit 3", {{"ONE", "1"}});
  CHECK(::getpgid(child.pid) == child.pid);
  CHECK(read_all(child.out) == "out 1\n");
  CHECK(read_all(child.err) == "err\n");
  const ChildNews news = wait_for(child.pid);
  REQUIRE(news.end);
  CHECK(news.end->code() == 3);
}

TEST_CASE("a signal and a stop are told apart from an exit") {
  ChildProcess child = shell("kill -STOP $$; kill -SEGV $$");
  ChildNews news = wait_for(child.pid);
  CHECK(!news.end);
  CHECK(news.stop_signal == SIGSTOP);
  ::kill(child.pid, SIGCONT);
  news = wait_for(child.pid);
  REQUIRE(news.end);
  CHECK(to_string(*news.end) == "was killed by SIGSEGV");
  CHECK(news.end->code() == -SIGSEGV);
}

TEST_CASE("what a child started goes with it") {
  ChildProcess child = shell("sleep 1000 & sleep 1000 & echo up; exit 0");
  REQUIRE(wait_for(child.pid).end);
  CHECK(gone_soon(child.pid));
  CHECK(read_all(child.out) == "up\n");  // ends, so no writer is left
}

TEST_CASE("a program that cannot be executed is one clear line") {
  const Scratch scratch;
  scratch.write("no-program", "text");
  const std::string path = (scratch.path() / "no-program").string();
  CHECK_THROWS_WITH_AS(spawn({.command = {path}, .environment = {}}),
                       (path + " cannot be executed: Permission denied").c_str(), ConfigError);
}

TEST_CASE("the guard ends the groups that are left when its owner is killed, and only these") {
  ChildProcess kept = shell("exec sleep 1000");
  ChildProcess forgotten = shell("exec sleep 1000");
  const pid_t owner = ::fork();
  if (owner == 0) {
    ProcessGuard guard;
    guard.watch(kept.pid);
    guard.watch(forgotten.pid);
    guard.forget(forgotten.pid);
    ::raise(SIGKILL);
  }
  ::waitpid(owner, nullptr, 0);
  const ChildNews news = wait_for(kept.pid);
  REQUIRE(news.end);
  CHECK(news.end->code() == -SIGKILL);
  CHECK(group_exists(forgotten.pid));
  ::kill(forgotten.pid, SIGKILL);
  wait_for(forgotten.pid);
}

TEST_CASE("programs are found by path, LEEWAY_BIN_PATH, beside leeway-run, PATH; else one line") {
  const Scratch scratch;
  for (const char* directory : {"one", "two"}) {
    std::filesystem::create_directory(scratch.path() / directory);
    scratch.write(std::string(directory) + "/tool", "#!/bin/sh\n");
    std::filesystem::permissions(scratch.path() / directory / "tool",
                                 std::filesystem::perms::owner_all);
  }
  const std::string one = (scratch.path() / "one").string();
  const std::string two = (scratch.path() / "two").string();
  CHECK(find_program("tool", {{"LEEWAY_BIN_PATH", "/nowhere:" + two}, {"PATH", one}}) ==
        two + "/tool");
  CHECK(find_program("tool", {{"PATH", ":" + one}}) == one + "/tool");
  CHECK(find_program("launcher_test", {}).ends_with("/launcher_test"));
  CHECK(find_program(one + "/tool", {}) == one + "/tool");
  CHECK_THROWS_AS(find_program("tool", {{"PATH", "/nowhere"}}), ConfigError);
  CHECK_THROWS_AS(find_program("./nothing", {}), ConfigError);
  CHECK_THROWS_AS(find_program("", {{"PATH", one}}), ConfigError);
}

TEST_CASE("a token has 128 bits and is never the same") {
  CHECK(random_token().size() == 32);
  CHECK(random_token() != random_token());
}

}  // namespace leeway::launcher
