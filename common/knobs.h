// Settings, each declared once: name, default, unit, reason. `--help`, `--print-config`, job files,
// environment variables and error messages all come from that one declaration.
//
// Layers, later ones win: default < file < environment < flag. Unknown names and bad values stop
// the program with the source, the name and the nearest valid one. Called from one thread, at
// start.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace leeway {

// A staleness bound: a number, "inf", or "auto:LOW..HIGH", which servers choose within.
struct Bound {
  static constexpr std::uint64_t kInfinite = UINT64_MAX;
  std::uint64_t value = 0;             // HIGH: what is promised
  std::optional<std::uint64_t> low{};  // LOW, when it is chosen
  bool infinite() const noexcept { return value == kInfinite; }
  friend bool operator==(Bound, Bound) noexcept = default;
};

// A time to wait, or "auto": the waiting one works it out.
struct Grace {
  std::chrono::milliseconds wait{0};
  bool automatic = false;
};

// One of a fixed list of words.
struct Choice {
  std::string value;
  std::vector<std::string> words;
};

// A number of bytes; text may carry a suffix: 512MiB, 2GiB, 1GB.
struct Bytes {
  std::uint64_t value = 0;
};

class Knobs {
 public:
  struct Knob {
    std::string name;
    std::string unit;    // "clocks", "ms", "bytes", a list of words, or ""
    std::string reason;  // one line, why somebody would change it
    std::string default_text;
    std::string source = "default";  // who set it last
    std::function<bool(std::string_view)> parse;
    std::function<std::string()> print;
  };

  // Each binds a field that outlives the Knobs; the field's value now is the default.
  void add(std::string name, bool& field, std::string reason);
  void add(std::string name, std::uint32_t& field, std::string unit, std::string reason);
  void add(std::string name, std::uint64_t& field, std::string unit, std::string reason);
  void add(std::string name, double& field, std::string unit, std::string reason);
  void add(std::string name, std::string& field, std::string unit, std::string reason);
  void add(std::string name, std::chrono::milliseconds& field, std::string reason);
  void add(std::string name, Bound& field, std::string unit, std::string reason);
  void add(std::string name, Grace& field, std::string reason);
  void add(std::string name, Choice& field, std::string reason);
  void add(std::string name, Bytes& field, std::string reason);

  // `source` says where the text came from: "job.toml:7", "environment LEEWAY_STALENESS",
  // "flag --staleness". The error names it.
  Status set(std::string_view name, std::string_view text, std::string source);
  // Every key of the table `section` of a TOML document ("" = the top level, whose sub-tables are
  // left alone). `file` is for messages.
  Status set_from_toml(std::string_view document, const std::string& file,
                       std::string_view section = "");
  // LEEWAY_<NAME IN CAPITALS> for every knob, asked of `lookup` (null = unset).
  Status set_from_environment(const std::function<const char*(const char*)>& lookup);

  const std::vector<Knob>& all() const noexcept { return knobs_; }
  const Knob* find(std::string_view name) const noexcept;
  std::map<std::string, std::string> values() const;
  // name = value  # unit; reason (source)
  std::string print_config() const;
  std::string help() const;

 private:
  void add_knob(Knob knob);
  std::vector<Knob> knobs_;
};

// The word of `words` that is fewest edits away, or "" when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& words);

}  // namespace leeway
