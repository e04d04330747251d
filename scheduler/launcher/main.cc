// leeway-run: starts a job and watches it. DESIGN: "What a user types".
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "common/result.h"
#include "scheduler/launcher/launch.h"
#include "scheduler/launcher/options.h"
#include "scheduler/launcher/programs.h"

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

// leeway-doctor is a program of its own: what it looks at is the transport's.
[[noreturn]] void become_doctor(char** argv,
                                const std::map<std::string, std::string>& environment) {
  const std::string path = leeway::launcher::find_program("leeway-doctor", environment);
  ::execv(path.c_str(), argv);
  throw leeway::ConfigError(path + " could not be started: " + std::strerror(errno));
}

// A worker needs nobody between it and whoever starts it: the program takes this process's place.
[[noreturn]] void become_worker(const leeway::launcher::JoinPlan& plan) {
  std::vector<std::string> program = plan.program;
  const std::string path = leeway::launcher::find_program(program.front(), plan.environment);
  std::vector<std::string> variables;
  for (const auto& [name, value] : plan.environment) variables.push_back(name + "=" + value);
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (std::string& text : texts) out.push_back(text.data());
    out.push_back(nullptr);
    return out;
  };
  ::execve(path.c_str(), pointers(program).data(), pointers(variables).data());
  throw leeway::ConfigError(path + " could not be started: " + std::strerror(errno));
}

// Started with closed standard streams, what is opened first would become them, and a child's
// streams would be wired over its other descriptors.
void fill_standard_streams() {
  int fd = ::open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd >= 0) ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  fill_standard_streams();
  try {
    const auto environment = read_environment();
    if (argc > 1 && std::strcmp(argv[1], "doctor") == 0) become_doctor(argv + 1, environment);
    if (argc > 1 && std::strcmp(argv[1], "worker") == 0) {
      std::string help;
      const auto plan =
          leeway::launcher::parse_join_options({argv + 2, argv + argc}, environment, help);
      if (plan) become_worker(*plan);
      std::fputs(help.c_str(), stdout);
      return 0;
    }
    const auto parsed = leeway::launcher::parse_options({argv + 1, argv + argc}, environment);
    if (parsed.plan) return leeway::launcher::launch(*parsed.plan, environment);
    std::fputs(parsed.text.c_str(), stdout);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "leeway-run: %s\n", error.what());
    return 2;
  }
}
