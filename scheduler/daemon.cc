#include "scheduler/daemon.h"

#include <pthread.h>

#include <csignal>
#include <cstdlib>
#include <ostream>
#include <random>
#include <thread>

#include "common/log.h"
#include "scheduler/daemon_options.h"
#include "scheduler/service.h"
#include "scheduler/state.h"

namespace leeway::scheduler {
namespace {

constexpr milliseconds kLinger{10'000};

// Delivers signals as calls: blocked in every thread, taken by one.
class Signals {
 public:
  Signals() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  // The next signal, or 0 when there was none for a while.
  int next() const {
    constexpr timespec kPatience{0, 100'000'000};
    const int signal = sigtimedwait(&set_, nullptr, &kPatience);
    return signal < 0 ? 0 : signal;
  }

 private:
  sigset_t set_{};
};

std::int64_t random_job() {
  std::random_device device;
  const std::uint64_t bits = (std::uint64_t{device()} << 32) | device();
  return static_cast<std::int64_t>(bits >> 1) | 1;
}

int serve(const DaemonOptions& options, std::ostream& out) {
  const Signals signals;  // before the first thread
  JobSetup setup;
  setup.servers = options.servers;
  setup.workers = options.workers;
  setup.places = options.max_workers;
  setup.job = random_job();
  setup.settings = options.settings;
  setup.checkpoint_dir = options.checkpoint_dir;
  std::unique_ptr<storage::ManifestStore> store;
  if (!options.checkpoint_dir.empty()) {
    store = value_or_throw(storage::ManifestStore::open(options.checkpoint_dir));
    load_state(*store, options.resume, setup);
  }
  ServiceOptions service_options;
  service_options.listen = options.listen;
  service_options.token = options.token;
  Service service(std::move(service_options), std::move(setup), std::move(store));
  out << "LISTENING " << service.address() << std::endl;

  std::jthread listener([&](const std::stop_token& stop) {
    for (int seen = 0; !stop.stop_requested();) {
      if (signals.next() == 0) continue;
      if (++seen == 1)
        service.stop("stopped by a signal");
      else
        service.interrupt("interrupted by a second signal");
    }
  });
  return service.wait(kLinger) == rpc::Phase::DONE ? 0 : 1;
}

}  // namespace

int run_daemon(int argc, char** argv, std::ostream& out, std::ostream& err) {
  try {
    const ParsedOptions parsed = parse_daemon_options(argc, argv, &std::getenv);
    if (!parsed.options) {
      out << parsed.text << std::flush;
      return 0;
    }
    log::start("scheduler");
    return serve(*parsed.options, out);
  } catch (const std::exception& error) {
    err << "leeway-scheduler: " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace leeway::scheduler
