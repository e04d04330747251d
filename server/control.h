// The life of a server process as the scheduler sees it: join, plan, heartbeats, phases, the end.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace leeway::server {

struct ServerOptions {
  std::uint32_t id = 0;
  std::string scheduler;  // HOST:PORT
  std::string token;
  std::string fabric = "auto";
  std::string bind = "127.0.0.1";
  unsigned threads = 0;  // that compute; 0: as many as there are CPUs that it may use
  std::string inject;    // common/inject.h
};

// Runs until the job ends; returns the exit code, having logged the reason when it is not 0. Throws
// ConfigError while starting. `terminate` may be set by a signal handler: the server then leaves
// and says so. Called from the main thread, which becomes the control thread.
int run_server(const ServerOptions& options, const std::atomic<bool>& terminate);

}  // namespace leeway::server
