#include "scheduler/launcher/terminal.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include "scheduler/launcher/child_process.h"

namespace leeway::launcher {

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
  char buffer[64];
  CHECK(std::string(buffer, static_cast<std::size_t>(::read(read_end.get(), buffer, 64))) ==
        "news\n");
}

TEST_CASE("a line is cut by characters, not bytes") {
  CHECK(cut_to_width("abcdef", 3) == "abc");
  CHECK(cut_to_width("äöü", 2) == "äö");
  CHECK(cut_to_width("äö", 5) == "äö");
  CHECK(cut_to_width("", 5).empty());
}

}  // namespace leeway::launcher
