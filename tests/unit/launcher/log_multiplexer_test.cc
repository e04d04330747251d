#include "scheduler/launcher/log_multiplexer.h"

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "common/result.h"
#include "tests/unit/launcher/scratch.h"

namespace leeway::launcher {
namespace {

std::vector<std::string> split(const std::vector<std::string>& chunks) {
  LineSplitter splitter;
  std::vector<std::string> lines;
  const auto sink = [&](std::string_view line) { lines.emplace_back(line); };
  for (const std::string& chunk : chunks) splitter.feed(chunk, sink);
  splitter.finish(sink);
  return lines;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("lines are put together over chunks, the last one without a newline too") {
  CHECK(split({"one\ntw", "o\n", "\nfour"}) == Lines{"one", "two", "", "four"});
  CHECK(split({"", "\n"}) == Lines{""});
  CHECK(split({}).empty());
}

TEST_CASE("a line of megabytes comes in pieces of bounded size and loses no byte") {
  std::string all;
  Lines lines = split({std::string(3'000'000, 'x') + "\nshort\n"});
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    CHECK(lines[i].size() <= LineSplitter::kLongest);
    all += lines[i];
  }
  CHECK(all == std::string(3'000'000, 'x'));
  CHECK(lines.back() == "short");
  // Exactly one piece, its newline in the next chunk: no empty line.
  CHECK(split({std::string(LineSplitter::kLongest, 'y'), "\nz\n"}).size() == 2);
}

TEST_CASE("control bytes never reach the terminal as such") {
  CHECK(printable(std::string_view("a\tb\x1b[2J\0c\r", 10)) == "a\tb\\x1b[2J\\x00c");
  CHECK(printable("progress\r") == "progress");
  CHECK(printable("Grüße") == "Grüße");
}

TEST_CASE("a log directory has one job at a time") {
  const Scratch scratch;
  const std::string directory = (scratch.path() / "logs").string();
  const auto show = [](const std::string&, LogMultiplexer::Stream, std::string_view) {};
  const auto warn = [](const std::string&) {};
  {
    const LogMultiplexer first(directory, show, warn);
    CHECK_THROWS_WITH_AS(LogMultiplexer(directory, show, warn),
                         ("log directory " + directory +
                          " is in use by another leeway-run (--log-dir names another)")
                             .c_str(),
                         ConfigError);
  }
  CHECK_NOTHROW(LogMultiplexer(directory, show, warn));
}

TEST_CASE("files hold the bytes as they came; the shown lines are named") {
  const Scratch scratch;
  Lines shown;
  LogMultiplexer logs(
      scratch.path() / "logs",
      [&](const std::string& who, LogMultiplexer::Stream, std::string_view line) {
        shown.push_back(who + "|" + std::string(line));
      },
      [](const std::string&) {});
  const std::string binary("\x00\xff\x01 no end", 10);
  logs.open("worker.1");
  logs.open("server.0");
  logs.feed("worker.1", LogMultiplexer::Stream::kOut, "first\n");
  logs.feed("server.0", LogMultiplexer::Stream::kErr, "half");
  logs.feed("worker.1", LogMultiplexer::Stream::kOut, binary);
  logs.feed("server.0", LogMultiplexer::Stream::kErr, " whole\n");
  logs.close("worker.1");
  logs.close("server.0");
  CHECK(shown == Lines{"worker.1|first", "server.0|half whole", "worker.1|" + binary});
  CHECK(scratch.read("logs/worker.1.log") == "first\n" + binary);
  // A restart appends.
  logs.open("worker.1");
  logs.feed("worker.1", LogMultiplexer::Stream::kOut, "\nagain\n");
  logs.close("worker.1");
  CHECK(scratch.read("logs/worker.1.log") == "first\n" + binary + "\nagain\n");
}

TEST_CASE("the last words are the last error, else the last of stderr, else the last of stdout") {
  const Scratch scratch;
  LogMultiplexer logs(
      scratch.path(), [](const std::string&, LogMultiplexer::Stream, std::string_view) {},
      [](const std::string&) {});
  logs.open("worker.0");
  CHECK(logs.last_words("worker.0").empty());
  logs.feed("worker.0", LogMultiplexer::Stream::kOut, "epoch 1\n\n");
  CHECK(logs.last_words("worker.0") == "epoch 1");
  logs.feed("worker.0", LogMultiplexer::Stream::kErr, "sh: 1: not found\n  \n");
  CHECK(logs.last_words("worker.0") == "sh: 1: not found");
  logs.feed("worker.0", LogMultiplexer::Stream::kErr,
            "12:34:56.789 E worker.0 no data in /nowhere\n12:34:56.790 I worker.0 bye\n");
  CHECK(logs.last_words("worker.0") == "no data in /nowhere");
}

TEST_CASE("a log directory that cannot be made is one clear line") {
  const Scratch scratch;
  std::ofstream(scratch.path() / "file") << "x";
  CHECK_THROWS_AS(LogMultiplexer(
                      scratch.path() / "file" / "logs",
                      [](const std::string&, LogMultiplexer::Stream, std::string_view) {},
                      [](const std::string&) {}),
                  ConfigError);
}

}  // namespace leeway::launcher
