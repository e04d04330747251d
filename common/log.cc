#include "common/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>

namespace leeway::log {
namespace {

std::atomic<Level> threshold{Level::kInfo};

spdlog::level::level_enum native(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void start(const std::string& who, Level level) {
  threshold = level;
  spdlog::drop_all();  // a program that names itself again is no error
  auto logger = spdlog::stderr_logger_mt("leeway." + who);
  logger->set_pattern(who.empty() ? "%v" : "%H:%M:%S.%e %^%L%$ " + who + " %v");
  logger->set_level(native(level));
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
}

bool enabled(Level level) noexcept { return level >= threshold.load(std::memory_order_relaxed); }

void write(Level level, std::string_view text) noexcept { spdlog::log(native(level), "{}", text); }

}  // namespace leeway::log
