// A member's line to the scheduler: Thrift over framed TCP, every call with a deadline, one
// connection that is made again when it breaks. The structs are those of scheduler.thrift.
//
// Not thread-safe: one Client a thread. Nothing is thrown; kRefused and kInvalidArgument mean that
// trying again will not help, kUnavailable and kTimedOut that it may.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/monotonic.h"
#include "common/result.h"
#include "scheduler_types.h"  // generated

namespace leeway::scheduler {

class Client {
 public:
  // `address` is HOST:PORT. Connects on the first call.
  Client(std::string address, milliseconds call_timeout = milliseconds(5000));
  ~Client();

  Result<rpc::Registration> join(const rpc::RegisterRequest& request);
  Status declare(const rpc::Caller& who, const rpc::Model& model);
  Result<rpc::View> watch(const rpc::Caller& who, std::int64_t epoch, milliseconds wait,
                          const rpc::WorkerReport& report);
  Result<rpc::View> watch(const rpc::Caller& who, std::int64_t epoch, milliseconds wait,
                          const rpc::ServerReport& report);
  Result<rpc::Plan> plan(const rpc::Caller& who);
  Status finish(const rpc::Caller& who, const rpc::WorkerReport& report);
  Status fault(const rpc::Caller& who, const std::string& reason);
  Status lost(const std::string& token, rpc::Role::type role, int id, const std::string& why,
              bool fails_job);

  Result<rpc::JobStatus> status();
  Result<std::vector<rpc::TensorStatus>> tensors();
  Result<std::vector<rpc::CheckpointInfo>> checkpoints();
  Result<std::string> checkpoint(const std::string& token);
  Status change(const std::string& token, const std::string& key, const std::string& value);
  Status stop(const std::string& token, const std::string& reason);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace leeway::scheduler
