#include "scheduler/one_line.h"

namespace leeway::scheduler {

std::string one_line(std::string_view text) {
  constexpr std::size_t kLongest = 500;
  std::string out(text.substr(0, kLongest));
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  return text.size() > kLongest ? out + "..." : out;
}

}  // namespace leeway::scheduler
