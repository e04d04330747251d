// What a worker asks of the scheduler: the narrow part of scheduler::Client, so that a session runs
// against a scheduler in the same process, too.
//
// Not thread-safe: the program's thread and the control thread have one each. Nothing is thrown;
// Error::retryable() says whether trying again may help.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/monotonic.h"
#include "common/result.h"
#include "scheduler_types.h"  // generated

namespace leeway::worker {

class ControlPlane {
 public:
  virtual ~ControlPlane() = default;
  virtual Result<rpc::Registration> join(const rpc::RegisterRequest& request) = 0;
  virtual Status declare(const rpc::Caller& who, const rpc::Model& model) = 0;
  virtual Result<rpc::View> watch(const rpc::Caller& who, std::int64_t epoch, milliseconds wait,
                                  const rpc::WorkerReport& report) = 0;
  virtual Result<rpc::Plan> plan(const rpc::Caller& who) = 0;
  virtual Status finish(const rpc::Caller& who, const rpc::WorkerReport& report) = 0;
  virtual Status fault(const rpc::Caller& who, const std::string& reason) = 0;
  virtual Status stop(const rpc::Caller& who, const std::string& reason) = 0;
};

// Makes one line to the scheduler.
using ControlPlaneFactory = std::function<std::unique_ptr<ControlPlane>()>;
ControlPlaneFactory thrift_control_plane(std::string scheduler);

}  // namespace leeway::worker
