// What the members print: whole and unchanged into a file each, and line by line to whoever shows
// it.
//
// Takes any bytes: lines without end, lines of megabytes, binary. Memory is bounded. Called from
// one thread.
#pragma once

#include <cstddef>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "scheduler/launcher/child_process.h"

namespace leeway::launcher {

// Cuts a stream of bytes into lines. A line longer than kLongest comes in pieces.
class LineSplitter {
 public:
  static constexpr std::size_t kLongest = std::size_t{16} << 10;
  using Sink = std::function<void(std::string_view line)>;

  void feed(std::string_view bytes, const Sink& sink);
  // The stream has ended: what is left is a line too.
  void finish(const Sink& sink);

 private:
  std::string pending_;
  bool cut_ = false;  // the last piece had no newline
};

// Fit for a terminal: control bytes other than tab as \xNN, a carriage return at the end dropped.
std::string printable(std::string_view line);

class LogMultiplexer {
 public:
  enum class Stream { kOut, kErr };
  using Show = std::function<void(const std::string& who, Stream stream, std::string_view line)>;
  using Warn = std::function<void(const std::string& text)>;

  // Files WHO.log in `directory`, which is made when missing, and which no other leeway-run uses as
  // long as this lives (throws ConfigError).
  LogMultiplexer(std::filesystem::path directory, Show show, Warn warn);

  // A new process of this name: its output is appended.
  void open(const std::string& who);
  void feed(const std::string& who, Stream stream, std::string_view bytes);
  void close(const std::string& who);

  // The line that says best why it ended: its last error line, else the last line on stderr, else
  // the last at all. Without time stamp and name.
  std::string last_words(const std::string& who) const;

 private:
  struct Source {
    Fd file;
    LineSplitter out, err;
    std::string last_error, last_err_line, last_out_line;
  };
  void line(const std::string& who, Source& source, Stream stream, std::string_view line);
  void write_file(const std::string& who, Source& source, std::string_view bytes);

  const std::filesystem::path directory_;
  Fd lock_;
  const Show show_;
  const Warn warn_;
  std::map<std::string, Source> sources_;
};

}  // namespace leeway::launcher
