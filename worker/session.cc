#include "worker/session.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <utility>

#include "common/log.h"
#include "worker/session_impl.h"

namespace leeway::worker {
namespace {

std::string required(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0')
    throw SessionError(
        fmt::format("{} is not set: start this program with leeway-run -- PROGRAM", name));
  return value;
}

std::uint32_t required_number(const char* name) {
  const std::string text = required(name);
  if (text == "auto") return kAnyRank;
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw SessionError(fmt::format(
        "{} = {} is no number: start this program with leeway-run -- PROGRAM", name, text));
  return value;
}

void optional(const char* name, std::string& value) {
  if (const char* text = std::getenv(name); text != nullptr) value = text;
}

}  // namespace

std::unique_ptr<Session> Session::from_environment(SessionOptions options) {
  options.scheduler = required("LEEWAY_SCHEDULER");
  options.token = required("LEEWAY_TOKEN");
  options.rank = required_number("RANK");
  options.world_size = required_number("WORLD_SIZE");
  optional("LEEWAY_FABRIC", options.fabric);
  optional("LEEWAY_BIND", options.bind);
  optional("LEEWAY_INJECT", options.inject);
  log::start(options.rank == kAnyRank ? "worker" : fmt::format("worker.{}", options.rank));
  auto session = join(options);
  log::start(fmt::format("worker.{}", session->rank()));
  return session;
}

std::unique_ptr<Session> Session::join(const SessionOptions& options) {
  return join_with(options, thrift_control_plane(options.scheduler));
}

}  // namespace leeway::worker
