#include "common/knobs.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace leeway {
namespace {

template <typename T>
bool parse_number(std::string_view text, T& out) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return false;
  if constexpr (std::is_floating_point_v<T>)
    if (!std::isfinite(value)) return false;
  out = value;
  return true;
}

std::string join(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, "|"));
}

bool parse_bytes(std::string_view text, std::uint64_t& out) {
  static constexpr std::pair<std::string_view, std::uint64_t> kSuffixes[] = {
      {"KiB", 1ull << 10}, {"MiB", 1ull << 20}, {"GiB", 1ull << 30},     {"TiB", 1ull << 40},
      {"KB", 1000ull},     {"MB", 1000'000ull}, {"GB", 1000'000'000ull}, {"B", 1ull}};
  std::uint64_t factor = 1;
  for (const auto& [suffix, value] : kSuffixes) {
    if (!text.ends_with(suffix)) continue;
    text.remove_suffix(suffix.size());
    factor = value;
    break;
  }
  std::uint64_t count = 0;
  return parse_number(text, count) && !__builtin_mul_overflow(count, factor, &out);
}

std::string environment_name(std::string_view name) {
  std::string variable = "LEEWAY_";
  for (char c : name) variable += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return variable;
}

std::string toml_text(const toml::node& node) {
  if (const auto* s = node.as_string()) return s->get();
  if (const auto* i = node.as_integer()) return std::to_string(i->get());
  if (const auto* b = node.as_boolean()) return b->get() ? "true" : "false";
  if (const auto* f = node.as_floating_point())
    return std::isinf(f->get()) && f->get() > 0 ? "inf" : fmt::format("{}", f->get());
  return "(neither text nor a number)";
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& words) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(3, word.size() / 2 + 1);
  for (const std::string& candidate : words) {
    std::vector<std::size_t> row(candidate.size() + 1);
    std::iota(row.begin(), row.end(), 0u);
    for (std::size_t i = 0; i < word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i + 1;
      for (std::size_t j = 0; j < candidate.size(); ++j) {
        const std::size_t replace = diagonal + (word[i] == candidate[j] ? 0 : 1);
        diagonal = row[j + 1];
        row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replace});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

void Knobs::add_knob(Knob knob) {
  LEEWAY_CHECK(find(knob.name) == nullptr);
  knob.default_text = knob.print();
  knobs_.push_back(std::move(knob));
}

void Knobs::add(std::string name, bool& field, std::string reason) {
  add_knob({.name = std::move(name),
            .unit = "true|false",
            .reason = std::move(reason),
            .parse =
                [&field](std::string_view text) {
                  if (text != "true" && text != "false") return false;
                  field = text == "true";
                  return true;
                },
            .print = [&field] { return std::string(field ? "true" : "false"); }});
}

#define LEEWAY_ADD_NUMBER(TYPE)                                                               \
  void Knobs::add(std::string name, TYPE& field, std::string unit, std::string reason) {      \
    add_knob({.name = std::move(name),                                                        \
              .unit = std::move(unit),                                                        \
              .reason = std::move(reason),                                                    \
              .parse = [&field](std::string_view text) { return parse_number(text, field); }, \
              .print = [&field] { return fmt::format("{}", field); }});                       \
  }
LEEWAY_ADD_NUMBER(std::uint32_t)
LEEWAY_ADD_NUMBER(std::uint64_t)
LEEWAY_ADD_NUMBER(double)
#undef LEEWAY_ADD_NUMBER

void Knobs::add(std::string name, std::string& field, std::string unit, std::string reason) {
  add_knob({.name = std::move(name),
            .unit = std::move(unit),
            .reason = std::move(reason),
            .parse =
                [&field](std::string_view text) {
                  field = text;
                  return true;
                },
            .print = [&field] { return field; }});
}

void Knobs::add(std::string name, std::chrono::milliseconds& field, std::string reason) {
  add_knob({.name = std::move(name),
            .unit = "ms",
            .reason = std::move(reason),
            .parse =
                [&field](std::string_view text) {
                  std::uint32_t value = 0;
                  if (!parse_number(text, value)) return false;
                  field = std::chrono::milliseconds(value);
                  return true;
                },
            .print = [&field] { return fmt::format("{}", field.count()); }});
}

void Knobs::add(std::string name, Bound& field, std::string unit, std::string reason) {
  add_knob({.name = std::move(name),
            .unit = unit + ", inf, or auto:LOW..HIGH with LOW <= HIGH",
            .reason = std::move(reason),
            .parse =
                [&field](std::string_view text) {
                  if (text == "inf") {
                    field = {Bound::kInfinite};
                    return true;
                  }
                  std::uint32_t low = 0, high = 0;  // 32 bits: clock plus bound never overflows
                  if (text.starts_with("auto:")) {
                    const auto dots = text.find("..");
                    if (dots == text.npos || !parse_number(text.substr(5, dots - 5), low) ||
                        !parse_number(text.substr(dots + 2), high) || low > high)
                      return false;
                    field = {high, low};
                    return true;
                  }
                  if (!parse_number(text, high)) return false;
                  field = {high};
                  return true;
                },
            .print =
                [&field] {
                  if (field.low) return fmt::format("auto:{}..{}", *field.low, field.value);
                  return field.infinite() ? std::string("inf") : fmt::format("{}", field.value);
                }});
}

void Knobs::add(std::string name, Grace& field, std::string reason) {
  add_knob({.name = std::move(name),
            .unit = "ms, or auto",
            .reason = std::move(reason),
            .parse =
                [&field](std::string_view text) {
                  std::uint32_t value = 0;
                  if (text != "auto" && !parse_number(text, value)) return false;
                  field = {std::chrono::milliseconds(value), text == "auto"};
                  return true;
                },
            .print =
                [&field] {
                  return field.automatic ? std::string("auto")
                                         : fmt::format("{}", field.wait.count());
                }});
}

void Knobs::add(std::string name, Choice& field, std::string reason) {
  add_knob({.name = std::move(name),
            .unit = join(field.words),
            .reason = std::move(reason),
            .parse =
                [&field](std::string_view text) {
                  if (std::find(field.words.begin(), field.words.end(), text) == field.words.end())
                    return false;
                  field.value = text;
                  return true;
                },
            .print = [&field] { return field.value; }});
}

void Knobs::add(std::string name, Bytes& field, std::string reason) {
  add_knob({.name = std::move(name),
            .unit = "bytes (512MiB, 2GiB)",
            .reason = std::move(reason),
            .parse = [&field](std::string_view text) { return parse_bytes(text, field.value); },
            .print = [&field] { return fmt::format("{}", field.value); }});
}

const Knobs::Knob* Knobs::find(std::string_view name) const noexcept {
  const auto it =
      std::find_if(knobs_.begin(), knobs_.end(), [&](const Knob& k) { return k.name == name; });
  return it == knobs_.end() ? nullptr : &*it;
}

Status Knobs::set(std::string_view name, std::string_view text, std::string source) {
  auto it =
      std::find_if(knobs_.begin(), knobs_.end(), [&](const Knob& k) { return k.name == name; });
  if (it == knobs_.end()) {
    std::vector<std::string> names;
    for (const Knob& knob : knobs_) names.push_back(knob.name);
    const std::string guess = nearest(name, names);
    return fail(Code::kInvalidArgument,
                fmt::format("{}: unknown setting '{}'{}", source, name,
                            guess.empty() ? "" : fmt::format(" (did you mean '{}'?)", guess)));
  }
  if (!it->parse(text)) {
    return fail(Code::kInvalidArgument,
                fmt::format("{}: {} = '{}' is not valid; it takes {}", source, name, text,
                            it->unit.empty() ? "a number" : it->unit));
  }
  it->source = std::move(source);
  return {};
}

Status Knobs::set_from_toml(std::string_view document, const std::string& file,
                            std::string_view section) {
  toml::table parsed;
  try {
    parsed = toml::parse(document, file);
  } catch (const toml::parse_error& error) {
    return fail(Code::kInvalidArgument,
                fmt::format("{}:{}: {}", file, error.source().begin.line, error.description()));
  }
  const toml::table* table = &parsed;
  if (!section.empty()) {
    const toml::node* node = table->get(section);
    if (node == nullptr) return {};
    table = node->as_table();
    if (table == nullptr)
      return fail(Code::kInvalidArgument, fmt::format("{}: '{}' is no table", file, section));
  }
  for (const auto& [key, node] : *table) {
    if (node.is_table()) continue;
    if (auto status =
            set(key.str(), toml_text(node), fmt::format("{}:{}", file, node.source().begin.line));
        !status)
      return status;
  }
  return {};
}

Status Knobs::set_from_environment(const std::function<const char*(const char*)>& lookup) {
  for (const Knob& knob : knobs_) {
    const std::string variable = environment_name(knob.name);
    if (const char* text = lookup(variable.c_str()))
      if (auto status = set(knob.name, text, "environment " + variable); !status) return status;
  }
  return {};
}

std::map<std::string, std::string> Knobs::values() const {
  std::map<std::string, std::string> out;
  for (const Knob& knob : knobs_) out[knob.name] = knob.print();
  return out;
}

std::string Knobs::print_config() const {
  std::string out;
  for (const Knob& knob : knobs_) {
    const std::string value = knob.print();
    out += fmt::format("{} = \"{}\"  # {}{}{} ({})\n", knob.name, value, knob.unit,
                       knob.unit.empty() ? "" : "; ", knob.reason, knob.source);
  }
  return out;
}

std::string Knobs::help() const {
  std::string out;
  for (const Knob& knob : knobs_)
    out += fmt::format("  {:<28} {} [{}; default {}]\n", knob.name, knob.reason, knob.unit,
                       knob.default_text.empty() ? "none" : knob.default_text);
  return out;
}

}  // namespace leeway
