#include "scheduler/launcher/log_multiplexer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/result.h"

namespace leeway::launcher {
namespace {

constexpr std::size_t kWordsLength = 400;

// A line of common/log.h is "HH:MM:SS.mmm L who text". Gives level and text, or nothing.
struct LogLine {
  char level = 0;
  std::string_view text;
};
LogLine parse_log_line(std::string_view line) {
  const auto is_digit = [&](std::size_t i) { return line[i] >= '0' && line[i] <= '9'; };
  if (line.size() < 16 || !is_digit(0) || line[2] != ':' || line[5] != ':' || line[8] != '.' ||
      line[12] != ' ' || line[14] != ' ')
    return {};
  const auto text = line.find(' ', 15);
  if (text == std::string_view::npos) return {};
  return {line[13], line.substr(text + 1)};
}

}  // namespace

void LineSplitter::feed(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    const auto newline = bytes.find('\n');
    const std::size_t room = kLongest - pending_.size();
    const std::size_t take = std::min({newline, room, bytes.size()});
    pending_.append(bytes.substr(0, take));
    bytes.remove_prefix(take);
    const bool whole = !bytes.empty() && bytes.front() == '\n';
    if (whole) bytes.remove_prefix(1);
    if (!whole && pending_.size() < kLongest) return;
    // The newline right behind a full piece ends that piece, it is no line of its own.
    if (!pending_.empty() || !cut_) sink(pending_);
    cut_ = !whole;
    pending_.clear();
  }
}

void LineSplitter::finish(const Sink& sink) {
  if (!pending_.empty()) sink(pending_);
  pending_.clear();
}

std::string printable(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  std::string out;
  out.reserve(line.size());
  for (char c : line) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\t') || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

LogMultiplexer::LogMultiplexer(std::filesystem::path directory, Show show, Warn warn)
    : directory_(std::move(directory)), show_(std::move(show)), warn_(std::move(warn)) {
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (error)
    throw ConfigError(fmt::format("log directory {} cannot be made: {} (--log-dir names another)",
                                  directory_.string(), error.message()));
  lock_ = Fd(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some file systems lock no directories: then nothing is known of others.
  if (lock_ && ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw ConfigError(
        fmt::format("log directory {} is in use by another leeway-run (--log-dir names another)",
                    directory_.string()));
}

void LogMultiplexer::open(const std::string& who) {
  const std::string path = (directory_ / (who + ".log")).string();
  Source source;
  source.file = Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!source.file)
    throw ConfigError(fmt::format("log file {} cannot be opened: {}", path, std::strerror(errno)));
  sources_[who] = std::move(source);
}

void LogMultiplexer::feed(const std::string& who, Stream stream, std::string_view bytes) {
  Source& source = sources_.at(who);
  write_file(who, source, bytes);
  LineSplitter& splitter = stream == Stream::kOut ? source.out : source.err;
  splitter.feed(bytes, [&](std::string_view text) { line(who, source, stream, text); });
}

void LogMultiplexer::close(const std::string& who) {
  Source& source = sources_.at(who);
  source.out.finish([&](std::string_view text) { line(who, source, Stream::kOut, text); });
  source.err.finish([&](std::string_view text) { line(who, source, Stream::kErr, text); });
  source.file.reset();
}

void LogMultiplexer::line(const std::string& who, Source& source, Stream stream,
                          std::string_view text) {
  if (text.find_first_not_of(" \t\r") != std::string_view::npos) {
    const LogLine parsed = parse_log_line(text);
    const std::string words =
        printable((parsed.level == 0 ? text : parsed.text).substr(0, kWordsLength));
    if (parsed.level == 'E' || parsed.level == 'C') source.last_error = words;
    (stream == Stream::kOut ? source.last_out_line : source.last_err_line) = words;
  }
  show_(who, stream, text);
}

void LogMultiplexer::write_file(const std::string& who, Source& source, std::string_view bytes) {
  while (source.file && !bytes.empty()) {
    const ssize_t written = ::write(source.file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      warn_(fmt::format("the log of {} is not written any more: {}", who, std::strerror(errno)));
      source.file.reset();
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

std::string LogMultiplexer::last_words(const std::string& who) const {
  const auto it = sources_.find(who);
  if (it == sources_.end()) return "";
  const Source& source = it->second;
  if (!source.last_error.empty()) return source.last_error;
  return source.last_err_line.empty() ? source.last_out_line : source.last_err_line;
}

}  // namespace leeway::launcher
