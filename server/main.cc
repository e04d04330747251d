// leeway-server: one shard of a job's model. leeway-run starts it; by hand, give it the scheduler.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <string>

#include "common/log.h"
#include "common/result.h"
#include "server/control.h"

namespace {

std::atomic<bool> terminate_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_terminate(int) { terminate_asked = true; }

void handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  leeway::server::ServerOptions options;
  CLI::App app{
      "leeway-server: holds one shard of a job's model and applies the workers' steps.\n"
      "Started by leeway-run; the job's settings come from its scheduler."};
  app.add_option("--id", options.id, "number of this server in the job, from 0")->required();
  app.add_option("--scheduler", options.scheduler, "HOST:PORT of the job's scheduler")
      ->envname("LEEWAY_SCHEDULER")
      ->required();
  app.add_option("--fabric", options.fabric, "auto, efa, verbs, tcp or shm")
      ->envname("LEEWAY_FABRIC")
      ->check(CLI::IsMember({"auto", "efa", "verbs", "tcp", "shm"}));
  app.add_option("--bind", options.bind, "address to listen on")->envname("LEEWAY_BIND");
  app.add_option("--threads", options.threads,
                 "threads that compute updates; default: the CPUs that it may use")
      ->check(CLI::Range(1u, 1024u));
  CLI11_PARSE(app, argc, argv);
  const auto environment = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  options.token = environment("LEEWAY_TOKEN");
  options.inject = environment("LEEWAY_INJECT");

  leeway::log::start("server." + std::to_string(options.id));
  handle(SIGTERM, on_terminate);
  handle(SIGINT, on_terminate);
  handle(SIGPIPE, SIG_IGN);
  try {
    return leeway::server::run_server(options, terminate_asked);
  } catch (const std::exception& e) {
    leeway::log::error("{}", e.what());
    return 1;
  }
}
