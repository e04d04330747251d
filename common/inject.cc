#include "common/inject.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <optional>

#include "common/knobs.h"

namespace leeway {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!(value >= 0 && value < 1e15)) return std::nullopt;
  return value;
}

struct Form {
  Injection::Kind kind;
  std::vector<std::string> required;  // besides worker= or server=
  bool servers;                       // may name a server
};

const std::map<std::string, Form, std::less<>>& forms() {
  static const std::map<std::string, Form, std::less<>> table = {
      {"slow", {Injection::Kind::kSlow, {"factor"}, false}},
      {"kill", {Injection::Kind::kKill, {"at_step"}, true}},
      {"pause", {Injection::Kind::kPause, {"at_step", "seconds"}, false}},
      {"nonfinite", {Injection::Kind::kNonfinite, {"at_step"}, false}},
  };
  return table;
}

}  // namespace

Result<Injection> parse_injection(std::string_view text) {
  const auto bad = [&](const std::string& why) {
    return fail(Code::kInvalidArgument, fmt::format("--inject {}: {}", text, why));
  };
  const auto colon = text.find(':');
  const auto form = forms().find(text.substr(0, colon));
  if (form == forms().end() || colon == std::string_view::npos)
    return bad("it takes slow:, kill:, pause: or nonfinite:, e.g. slow:worker=2,factor=5");

  std::map<std::string, double, std::less<>> values;
  for (std::string_view part : split(text.substr(colon + 1), ',')) {
    const auto equals = part.find('=');
    if (equals == std::string_view::npos) return bad(fmt::format("'{}' is no KEY=VALUE", part));
    const auto value = number(part.substr(equals + 1));
    if (!value) return bad(fmt::format("'{}' is no number", part.substr(equals + 1)));
    if (!values.emplace(part.substr(0, equals), *value).second)
      return bad(fmt::format("'{}' is given twice", part.substr(0, equals)));
  }

  const auto take = [&](std::string_view key) -> std::optional<double> {
    const auto it = values.find(key);
    if (it == values.end()) return std::nullopt;
    const double value = it->second;
    values.erase(it);
    return value;
  };
  Injection injection{.kind = form->second.kind};
  auto index = take("worker");
  if (!index && form->second.servers) {
    index = take("server");
    injection.server = true;
  }
  if (!index) return bad("it must name a worker, e.g. worker=2");
  injection.index = static_cast<std::uint32_t>(*index);
  for (const std::string& key : form->second.required) {
    const auto value = take(key);
    if (!value) return bad(fmt::format("{}= is missing", key));
    if (key == "factor") injection.factor = *value;
    if (key == "seconds") injection.seconds = *value;
    if (key == "at_step") injection.at_step = static_cast<std::uint64_t>(*value);
  }
  if (!values.empty()) return bad(fmt::format("'{}' does not belong here", values.begin()->first));
  if (injection.kind == Injection::Kind::kSlow && injection.factor < 1)
    return bad("factor must be at least 1");
  return injection;
}

Result<std::vector<Injection>> parse_injections(std::string_view text) {
  std::vector<Injection> injections;
  if (text.empty()) return injections;
  for (std::string_view part : split(text, ';')) {
    auto injection = parse_injection(part);
    if (!injection) return tl::unexpected(injection.error());
    injections.push_back(*injection);
  }
  return injections;
}

}  // namespace leeway
