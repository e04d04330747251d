// What leeway-run prints to one descriptor. Never waits for whoever reads it: a pager that stands
// still, or a terminal after Ctrl-S, must keep leeway-run neither from its members nor from a
// Ctrl-C. What cannot be written stays here up to a bound; lines beyond it are counted and left
// out. Called from one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "scheduler/launcher/child_process.h"

namespace leeway::launcher {

class OutputQueue {
 public:
  static constexpr std::size_t kMost = 1 << 20;  // bytes that wait

  explicit OutputQueue(int fd);  // `fd` stays open as long as this lives

  void put(std::string_view text);  // a line with its newline, or what moves the cursor
  void pump();                      // writes what can be written now
  bool waiting() const noexcept { return !pending_.empty(); }
  int descriptor() const noexcept { return own_ ? own_.get() : fd_; }

 private:
  void write_pending();
  void note_left_out();

  const int fd_;
  Fd own_;  // non-blocking, of a pipe or a terminal; the flag on `fd_` would be everybody's
  std::string pending_;
  std::size_t left_out_ = 0;  // lines
};

}  // namespace leeway::launcher
