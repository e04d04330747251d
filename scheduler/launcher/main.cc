// leeway-run: starts a job and watches it. DESIGN: "What a user types".
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "scheduler/launcher/launch.h"
#include "scheduler/launcher/options.h"

namespace {

std::map<std::string, std::string> read_environment() {
  std::map<std::string, std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string::npos) out[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto environment = read_environment();
    const auto parsed = leeway::launcher::parse_options({argv + 1, argv + argc}, environment);
    if (parsed.plan) return leeway::launcher::launch(*parsed.plan, environment);
    std::fputs(parsed.text.c_str(), stdout);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "leeway-run: %s\n", error.what());
    return 2;
  }
}
