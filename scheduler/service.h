// The scheduler as a process has it: JobCore behind Thrift, a timer, and the ManifestStore.
//
// Constructed = listening. Threads: one a connection (bounded; a silent one ends after
// idle_timeout), one that ticks and writes manifests, one that accepts. One mutex guards the core;
// nothing blocks under it. Destroyed: connections end, long polls return, all threads are joined.
#pragma once

#include <memory>
#include <string>

#include "common/monotonic.h"
#include "scheduler/job_core.h"
#include "storage/checkpoint_store.h"

namespace leeway::scheduler {

struct ServiceOptions {
  std::string listen = "127.0.0.1:0";
  std::string token;  // what every change needs; not empty
  milliseconds idle_timeout{30'000};
  std::uint32_t max_connections = 0;  // 0 = by the size of the job
};

class Service {
 public:
  // `store` may be null without a checkpoint directory. ConfigError when it cannot listen.
  Service(ServiceOptions options, JobSetup setup, std::unique_ptr<storage::ManifestStore> store);
  ~Service();

  std::string address() const;  // HOST:PORT, with the port that was chosen
  // As leeway-admin stop does it: when the job is over, wait() need not linger. Any thread.
  void stop(const std::string& reason);
  // The job fails now if it is not over, and wait() does not linger. Any thread.
  void interrupt(const std::string& reason);
  // Returns when the job is over, and `linger` later: those who ask what happened get an answer
  // until then, or until somebody calls stop.
  rpc::Phase::type wait(milliseconds linger);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace leeway::scheduler
