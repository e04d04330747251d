// Saves checkpoints for ever, a line on stdout before and after each part, until it is killed:
//   save_loop DIR FIRST
#include <signal.h>
#include <sys/prctl.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "test_job.h"

int main(int argc, char** argv) {
  using namespace leeway;
  using namespace leeway::storage;
  if (argc != 3) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // outlives no test that was itself killed
  const auto say = [](const char* what, std::uint64_t step) {
    std::printf("%s %llu\n", what, static_cast<unsigned long long>(step));
    std::fflush(stdout);
  };
  try {
    testing::TestJob job(argv[1], 2, 100'000);
    for (std::uint64_t step = std::strtoull(argv[2], nullptr, 10);; ++step) {
      say("begin", step);
      const Manifest manifest = value_or_throw(
          job.write("step-" + std::to_string(step), testing::TestModel::small(step)));
      say("written", step);
      value_or_throw(job.manifests().commit(manifest));
      say("committed", step);
      std::vector<std::string> keep;
      for (const Manifest& old : value_or_throw(job.manifests().list())) keep.push_back(old.id);
      if (keep.size() > 2) {
        value_or_throw(job.manifests().forget(keep.front()));
        keep.erase(keep.begin());
        for (std::uint32_t s : {0u, 1u}) value_or_throw(job.shard(s).prune(keep));
        say("pruned", step);
      }
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "save_loop: %s\n", e.what());
    return 1;
  }
}
