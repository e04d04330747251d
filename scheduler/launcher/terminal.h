// Where leeway-run prints: lines, and below them one progress line that is redrawn in place when
// standard output is a terminal. Called from one thread.
#pragma once

#include <string>
#include <string_view>

namespace leeway::launcher {

class Terminal {
 public:
  // `out` and `err` are descriptors that stay open; `interactive`: redraw a progress line on `out`.
  Terminal(int out, int err, bool interactive);
  ~Terminal();

  bool interactive() const noexcept { return interactive_; }
  void line(std::string_view text);        // to `out`
  void error_line(std::string_view text);  // to `err`
  // The line at the bottom, cut to the width of the window. "" = none. Not interactive: ignored.
  void progress(std::string text);
  // Draws what changed; call once a round, so that a burst of lines redraws once.
  void refresh();

 private:
  void erase();
  void write_all(int fd, std::string_view bytes) noexcept;

  const int out_, err_;
  const bool interactive_;
  std::string progress_;
  bool drawn_ = false;
};

// `text` cut to `columns`, never within a UTF-8 character.
std::string cut_to_width(std::string_view text, std::size_t columns);

}  // namespace leeway::launcher
