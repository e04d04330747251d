// The conformance suite; its arguments are those of fabric.h and doctest's own.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string_view>

#include "tests/conformance/fabric.h"
#include "tests/conformance/puppet.h"
#include "tests/conformance/two_hosts.h"

int main(int argc, char** argv) {
  using namespace leeway::conformance;
  Fabric fabric;
  PuppetOptions puppet;
  int pipe = -1, network = -1;
  std::unique_ptr<TwoHosts> hosts;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    // Other processes are on another host.
    if (name == "--two-hosts") try {
        hosts = std::make_unique<TwoHosts>();
        use_two_hosts(hosts.get());
        fabric.bind = TwoHosts::kHere[0];
        fabric.other_bind = TwoHosts::kThere[0];
        fabric.other_namespace = hosts->other();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "two hosts: %s\n", error.what());
        return 1;
      }
    if (i + 1 == argc) break;
    const char* const value = argv[i + 1];
    const auto number = [&] { return std::strtoull(value, nullptr, 10); };
    if (name == "--fabric") fabric.name = value;
    if (name == "--bind") fabric.bind = value;
    if (name == "--seed") fabric.seed = number();
    if (name == "--seeds") fabric.seeds = static_cast<std::uint32_t>(number());
    // Of a puppet.
    if (name == "--puppet") pipe = std::atoi(value);
    if (name == "--port") puppet.port = static_cast<std::uint16_t>(number());
    if (name == "--max-transfer") puppet.max_transfer = number();
    if (name == "--open-files") puppet.open_files = number();
    if (name == "--namespace") network = std::atoi(value);
  }
  choose_fabric(fabric);
  if (network >= 0 && setns(network, CLONE_NEWNET) != 0) {
    std::perror("setns");
    return 1;
  }
  if (pipe >= 0) return run_puppet(pipe, puppet);

  std::printf("fabric %s, seed %llu\n", fabric.name.c_str(),
              static_cast<unsigned long long>(fabric.seed));
  doctest::Context context;
  if (!fabric.has_processes()) context.addFilter("source-file-exclude", "*/process_test.cc");
  context.applyCommandLine(argc, argv);
  return context.run();
}
