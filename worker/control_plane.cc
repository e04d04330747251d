#include "worker/control_plane.h"

#include <utility>

#include "scheduler/client.h"

namespace leeway::worker {
namespace {

class ThriftControlPlane final : public ControlPlane {
 public:
  explicit ThriftControlPlane(const std::string& scheduler) : client_(scheduler) {}

  Result<rpc::Registration> join(const rpc::RegisterRequest& request) override {
    return client_.join(request);
  }
  Status declare(const rpc::Caller& who, const rpc::Model& model) override {
    return client_.declare(who, model);
  }
  Result<rpc::View> watch(const rpc::Caller& who, std::int64_t epoch, milliseconds wait,
                          const rpc::WorkerReport& report) override {
    return client_.watch(who, epoch, wait, report);
  }
  Result<rpc::Plan> plan(const rpc::Caller& who) override { return client_.plan(who); }
  Status finish(const rpc::Caller& who, const rpc::WorkerReport& report) override {
    return client_.finish(who, report);
  }
  Status fault(const rpc::Caller& who, const std::string& reason) override {
    return client_.fault(who, reason);
  }
  Status stop(const rpc::Caller& who, const std::string& reason) override {
    return client_.stop(who.token, reason);
  }

 private:
  scheduler::Client client_;
};

}  // namespace

ControlPlaneFactory thrift_control_plane(std::string scheduler) {
  return [scheduler = std::move(scheduler)] {
    return std::make_unique<ThriftControlPlane>(scheduler);
  };
}

}  // namespace leeway::worker
