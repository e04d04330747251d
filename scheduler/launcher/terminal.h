// Where leeway-run prints: lines, and below them one progress line that is redrawn in place when
// standard output is a terminal. Nothing here waits for whoever reads it but drain(). Called from
// one thread.
#pragma once

#include <poll.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/launcher/output_queue.h"

namespace leeway::launcher {

class Terminal {
 public:
  // `out` and `err` are descriptors that stay open; `interactive`: redraw a progress line on `out`.
  Terminal(int out, int err, bool interactive);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  bool interactive() const noexcept { return interactive_; }
  void line(std::string_view text);        // to `out`
  void error_line(std::string_view text);  // to `err`
  // The line at the bottom, cut to the width of the window. "" = none. Not interactive: ignored.
  void progress(std::string text);
  // Draws and writes what changed; call once a round, so that a burst of lines redraws once.
  void refresh();
  // What to poll() for so that refresh() can write more; nothing when all is written.
  std::vector<pollfd> waits() const;
  // Waits until all is written, until a signal other than SIGCHLD comes out of `signals`, or for
  // `patience`.
  void drain(int signals, std::optional<std::chrono::milliseconds> patience);

 private:
  void erase();

  const bool interactive_;
  OutputQueue out_;
  std::optional<OutputQueue> other_;  // of `err`, where it is another file than `out`
  OutputQueue& err_;
  std::string progress_;
  bool drawn_ = false;
};

// `text` cut to `columns`, never within a UTF-8 character.
std::string cut_to_width(std::string_view text, std::size_t columns);

}  // namespace leeway::launcher
