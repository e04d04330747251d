#include "common/name_patterns.h"

#include <algorithm>

namespace leeway {
namespace {

// Goes back to the last star alone, so a peer's or a person's pattern costs no more than the
// product of the lengths.
bool matches(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, after_star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (after_star != std::string_view::npos) {
      p = after_star;
      n = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace

bool matches_any(std::string_view patterns, std::string_view name) {
  while (!patterns.empty()) {
    const std::size_t end = std::min(patterns.find(','), patterns.size());
    std::string_view pattern = patterns.substr(0, end);
    patterns.remove_prefix(std::min(end + 1, patterns.size()));
    while (!pattern.empty() && pattern.front() == ' ') pattern.remove_prefix(1);
    while (!pattern.empty() && pattern.back() == ' ') pattern.remove_suffix(1);
    if (!pattern.empty() && matches(pattern, name)) return true;
  }
  return false;
}

}  // namespace leeway
