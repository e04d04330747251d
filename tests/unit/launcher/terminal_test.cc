#include "scheduler/launcher/terminal.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

#include "scheduler/launcher/child_process.h"

namespace leeway::launcher {
namespace {

// What a pipe holds now.
std::string what_is_in(const Fd& read_end) {
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(read_end.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  return text;
}

}  // namespace

TEST_CASE("lines are printed above the progress line, which is drawn once a round") {
  auto [read_end, write_end] = make_pipe();
  {
    Terminal terminal(write_end.get(), write_end.get(), true);
    terminal.progress("step 1");
    terminal.refresh();
    terminal.refresh();
    terminal.line("news");
    terminal.error_line("bad news");
    terminal.refresh();
    terminal.progress("");
  }
  write_end.reset();
  char buffer[256];
  const ssize_t got = ::read(read_end.get(), buffer, sizeof buffer);
  REQUIRE(got > 0);
  CHECK(std::string(buffer, static_cast<std::size_t>(got)) ==
        "step 1\r\033[Knews\nbad news\nstep 1\r\033[K");
}

TEST_CASE("without a terminal there is no progress line") {
  auto [read_end, write_end] = make_pipe();
  Terminal terminal(write_end.get(), write_end.get(), false);
  terminal.progress("step 1");
  terminal.refresh();
  terminal.line("news");
  terminal.refresh();
  char buffer[64];
  CHECK(std::string(buffer, static_cast<std::size_t>(::read(read_end.get(), buffer, 64))) ==
        "news\n");
}

TEST_CASE("lines to one file keep their order, whichever stream they go to") {
  auto [read_end, write_end] = make_pipe();
  const Fd other(::dup(write_end.get()));
  Terminal terminal(write_end.get(), other.get(), false);
  terminal.line("one");
  terminal.error_line("two");
  terminal.line("three");
  terminal.refresh();
  CHECK(what_is_in(read_end) == "one\ntwo\nthree\n");
  CHECK(terminal.waits().empty());
}

TEST_CASE("nobody reads: lines wait up to a bound, the rest is counted, and nothing blocks") {
  auto [read_end, write_end] = make_pipe();
  Terminal terminal(write_end.get(), write_end.get(), false);
  const std::string line(999, 'x');
  const std::size_t lines = 3 * OutputQueue::kMost / (line.size() + 1);
  for (std::size_t i = 0; i < lines; ++i) terminal.line(line);
  terminal.refresh();
  REQUIRE(terminal.waits().size() == 1);
  CHECK(terminal.waits()[0].fd != write_end.get());
  CHECK((::fcntl(write_end.get(), F_GETFL) & O_NONBLOCK) == 0);

  // And when somebody reads again, all that waited comes, and how many lines did not.
  std::string all;
  for (int round = 0; round < 1000 && !terminal.waits().empty(); ++round) {
    all += what_is_in(read_end);
    terminal.refresh();
  }
  all += what_is_in(read_end);
  const auto note = all.find("leeway-run: ");
  REQUIRE(note != std::string::npos);
  CHECK(note % (line.size() + 1) == 0);
  const std::size_t shown = note / (line.size() + 1);
  CHECK(shown * (line.size() + 1) >= OutputQueue::kMost);
  CHECK(all.substr(note) == "leeway-run: " + std::to_string(lines - shown) +
                                " lines are left out here, nobody read them in time; the logs "
                                "have them\n");
}

TEST_CASE("a reader that is gone takes what waits for it along") {
  auto [read_end, write_end] = make_pipe();
  ::signal(SIGPIPE, SIG_IGN);
  Terminal terminal(write_end.get(), write_end.get(), false);
  read_end.reset();
  terminal.line("news");
  terminal.refresh();
  CHECK(terminal.waits().empty());
}

TEST_CASE("draining ends when all is written, at a signal, or when patience ends") {
  auto [read_end, write_end] = make_pipe();
  auto [signals, raise_signal] = make_pipe();  // in the place of a signalfd
  ::fcntl(signals.get(), F_SETFL, O_NONBLOCK);
  Terminal terminal(write_end.get(), write_end.get(), false);
  terminal.line("news");
  terminal.drain(signals.get(), std::nullopt);
  CHECK(what_is_in(read_end) == "news\n");

  for (int i = 0; i < 1000; ++i) terminal.line(std::string(999, 'x'));
  terminal.drain(signals.get(), std::chrono::milliseconds(1));
  CHECK(!terminal.waits().empty());
  for (const int number : {SIGCHLD, SIGINT}) {
    signalfd_siginfo info{};
    info.ssi_signo = static_cast<std::uint32_t>(number);
    REQUIRE(::write(raise_signal.get(), &info, sizeof info) == sizeof info);
  }
  terminal.drain(signals.get(), std::nullopt);
  CHECK(!terminal.waits().empty());
}

TEST_CASE("a line is cut by characters, not bytes") {
  CHECK(cut_to_width("abcdef", 3) == "abc");
  CHECK(cut_to_width("äöü", 2) == "äö");
  CHECK(cut_to_width("äö", 5) == "äö");
  CHECK(cut_to_width("", 5).empty());
}

}  // namespace leeway::launcher
