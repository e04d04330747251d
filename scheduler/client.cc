#include "scheduler/client.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <thrift/TApplicationException.h>
#include <thrift/TConfiguration.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TSocket.h>
#include <thrift/transport/TTransportException.h>

#include <optional>
#include <utility>

#include "Scheduler.h"  // generated
#include "scheduler/endpoint.h"
#include "scheduler/wire.h"

namespace leeway::scheduler {
namespace {

using apache::thrift::transport::TSocket;
using apache::thrift::transport::TTransportException;

// `checkpoint` answers when every server has written its shard.
constexpr milliseconds kCheckpointWait{600'000};

}  // namespace

class Client::Impl {
 public:
  Impl(std::string address, milliseconds call_timeout)
      : address_(std::move(address)), call_timeout_(call_timeout) {
    quiet_thrift();
  }
  ~Impl() { disconnect(); }

  // Runs `call` on a live connection; `extra` is how long the scheduler may take on purpose.
  template <typename Call>
  Status run(milliseconds extra, Call call) {
    try {
      if (auto status = connect(extra); !status) return status;
      call(*stub_);
      return {};
    } catch (const rpc::Refused& refused) {
      return tl::unexpected(to_error(refused));
    } catch (const TTransportException& error) {
      disconnect();
      if (error.getType() == TTransportException::TIMED_OUT)
        return fail(Code::kTimedOut, fmt::format("the scheduler at {} did not answer within {} ms",
                                                 address_, (call_timeout_ + extra).count()));
      return fail(Code::kUnavailable,
                  fmt::format("cannot reach the scheduler at {}: {}", address_, error.what()));
    } catch (const std::exception& error) {
      disconnect();
      return fail(Code::kInternal, fmt::format("no valid answer from {}: {}; is it a scheduler of "
                                               "this version?",
                                               address_, error.what()));
    }
  }

  template <typename T, typename Call>
  Result<T> get(milliseconds extra, Call call) {
    T out;
    if (auto status = run(extra, [&](rpc::SchedulerClient& stub) { call(stub, out); }); !status)
      return tl::unexpected(std::move(status.error()));
    return out;
  }

 private:
  Status connect(milliseconds extra) {
    if (stub_ && closed_by_peer()) disconnect();
    if (!stub_) {
      auto target = parse_host_port(address_);
      if (!target) return tl::unexpected(std::move(target.error()));
      socket_ = std::make_shared<TSocket>(target->host, target->port, thrift_limits());
      socket_->setConnTimeout(static_cast<int>(call_timeout_.count()));
      socket_->setSendTimeout(static_cast<int>(call_timeout_.count()));
      socket_->open();
      stub_.emplace(bounded_binary()->getProtocol(framed()->getTransport(socket_)));
    }
    socket_->setRecvTimeout(static_cast<int>((call_timeout_ + extra).count()));
    return {};
  }

  // The scheduler closes connections that were idle for long: better noticed before a call is sent
  // than by its loss.
  bool closed_by_peer() const {
    char byte = 0;
    return ::recv(socket_->getSocketFD(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
  }

  void disconnect() noexcept {
    stub_.reset();
    if (!socket_) return;
    try {
      socket_->close();
    } catch (const std::exception&) {
      // A socket that cannot be closed is gone all the same.
    }
    socket_.reset();
  }

  const std::string address_;
  const milliseconds call_timeout_;
  std::shared_ptr<TSocket> socket_;
  std::optional<rpc::SchedulerClient> stub_;  // set while connected
};

Client::Client(std::string address, milliseconds call_timeout)
    : impl_(std::make_unique<Impl>(std::move(address), call_timeout)) {}
Client::~Client() = default;

Result<rpc::Registration> Client::join(const rpc::RegisterRequest& request) {
  return impl_->get<rpc::Registration>(milliseconds(0),
                                       [&](auto& stub, auto& out) { stub.join(out, request); });
}

Status Client::declare(const rpc::Caller& who, const rpc::Model& model) {
  return impl_->run(milliseconds(0), [&](auto& stub) { stub.declare_model(who, model); });
}

Result<rpc::View> Client::watch(const rpc::Caller& who, std::int64_t epoch, milliseconds wait,
                                const rpc::WorkerReport& report) {
  return impl_->get<rpc::View>(wait, [&](auto& stub, auto& out) {
    stub.watch_worker(out, who, epoch, static_cast<std::int32_t>(wait.count()), report);
  });
}

Result<rpc::View> Client::watch(const rpc::Caller& who, std::int64_t epoch, milliseconds wait,
                                const rpc::ServerReport& report) {
  return impl_->get<rpc::View>(wait, [&](auto& stub, auto& out) {
    stub.watch_server(out, who, epoch, static_cast<std::int32_t>(wait.count()), report);
  });
}

Result<rpc::Plan> Client::plan(const rpc::Caller& who) {
  return impl_->get<rpc::Plan>(milliseconds(0),
                               [&](auto& stub, auto& out) { stub.plan(out, who); });
}

Status Client::finish(const rpc::Caller& who, const rpc::WorkerReport& report) {
  return impl_->run(milliseconds(0), [&](auto& stub) { stub.finish(who, report); });
}

Status Client::fault(const rpc::Caller& who, const std::string& reason) {
  return impl_->run(milliseconds(0), [&](auto& stub) { stub.fault(who, reason); });
}

Status Client::lost(const std::string& token, rpc::Role::type role, int id, const std::string& why,
                    bool fails_job) {
  return impl_->run(milliseconds(0),
                    [&](auto& stub) { stub.lost(token, role, id, why, fails_job); });
}

Result<rpc::JobStatus> Client::status() {
  return impl_->get<rpc::JobStatus>(milliseconds(0),
                                    [](auto& stub, auto& out) { stub.status(out); });
}

Result<std::vector<rpc::TensorStatus>> Client::tensors() {
  return impl_->get<std::vector<rpc::TensorStatus>>(
      milliseconds(0), [](auto& stub, auto& out) { stub.tensors(out); });
}

Result<std::vector<rpc::CheckpointInfo>> Client::checkpoints() {
  return impl_->get<std::vector<rpc::CheckpointInfo>>(
      milliseconds(0), [](auto& stub, auto& out) { stub.checkpoints(out); });
}

Result<std::string> Client::checkpoint(const std::string& token) {
  return impl_->get<std::string>(kCheckpointWait,
                                 [&](auto& stub, auto& out) { stub.checkpoint(out, token); });
}

Status Client::change(const std::string& token, const std::string& key, const std::string& value) {
  return impl_->run(milliseconds(0), [&](auto& stub) { stub.change(token, key, value); });
}

Status Client::stop(const std::string& token, const std::string& reason) {
  return impl_->run(milliseconds(0), [&](auto& stub) { stub.stop(token, reason); });
}

}  // namespace leeway::scheduler
