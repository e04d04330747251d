// Log lines: time, level, who, text. One process-wide sink (stderr), set up once in main; libraries
// only write. Called from any thread.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace leeway::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// `who` names the role in each line ("server.0"); nothing means the program is a command-line tool.
// The last call wins.
void start(const std::string& who, Level level = Level::kInfo);
bool enabled(Level level) noexcept;
void write(Level level, std::string_view text) noexcept;

template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kDebug))
    write(Level::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kInfo)) write(Level::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  write(Level::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace leeway::log
