#include "scheduler/service.h"

#include <fmt/format.h>
#include <thrift/server/TThreadedServer.h>
#include <thrift/transport/TServerSocket.h>
#include <thrift/transport/TTransportException.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "Scheduler.h"  // generated
#include "scheduler/endpoint.h"
#include "scheduler/job_host.h"
#include "scheduler/one_line.h"
#include "scheduler/wire.h"

namespace leeway::scheduler {
namespace {

using apache::thrift::server::TThreadedServer;
using apache::thrift::transport::TServerSocket;
using apache::thrift::transport::TTransportException;

constexpr int kSendTimeoutMs = 10'000;
// A person's `leeway-admin checkpoint` waits so long; the client a little longer.
constexpr milliseconds kCheckpointWait{600'000};

// Takes the same time wherever the first difference is.
bool same_secret(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^
                  static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  return difference == 0;
}

template <typename T>
T value_or_refuse(Result<T> result) {
  if (!result) throw to_refused(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

class Handler : public rpc::SchedulerIf {
 public:
  Handler(JobHost& host, std::string token) : host_(host), token_(std::move(token)) {}

  void join(rpc::Registration& out, const rpc::RegisterRequest& request) override {
    out = call<rpc::Registration>(
        request.token, [&](JobCore& core, TimePoint now) { return core.join(request, now); });
  }

  void declare_model(const rpc::Caller& who, const rpc::Model& model) override {
    call<void>(who.token,
               [&](JobCore& core, TimePoint now) { return core.declare(who, model, now); });
  }

  void watch_worker(rpc::View& out, const rpc::Caller& who, std::int64_t epoch,
                    std::int32_t wait_ms, const rpc::WorkerReport& report) override {
    watch(out, who, epoch, wait_ms, report);
  }

  void watch_server(rpc::View& out, const rpc::Caller& who, std::int64_t epoch,
                    std::int32_t wait_ms, const rpc::ServerReport& report) override {
    watch(out, who, epoch, wait_ms, report);
  }

  void plan(rpc::Plan& out, const rpc::Caller& who) override {
    out = call<rpc::Plan>(who.token, [&](JobCore& core, TimePoint) { return core.plan(who); });
  }

  void finish(const rpc::Caller& who, const rpc::WorkerReport& report) override {
    call<void>(who.token,
               [&](JobCore& core, TimePoint now) { return core.finish(who, report, now); });
  }

  void fault(const rpc::Caller& who, const std::string& reason) override {
    call<void>(who.token,
               [&](JobCore& core, TimePoint now) { return core.fault(who, reason, now); });
  }

  void lost(const std::string& token, rpc::Role::type role, std::int32_t id, const std::string& why,
            bool fails_job) override {
    call<void>(token, [&](JobCore& core, TimePoint now) {
      return core.lost(role, id, why, fails_job, now);
    });
  }

  void status(rpc::JobStatus& out) override {
    out = host_.with([](JobCore& core, TimePoint now) { return core.status(now); });
  }

  void tensors(std::vector<rpc::TensorStatus>& out) override {
    out = host_.with([](JobCore& core, TimePoint) { return core.tensors(); });
  }

  void checkpoints(std::vector<rpc::CheckpointInfo>& out) override {
    out = host_.with([](JobCore& core, TimePoint) { return core.checkpoints(); });
  }

  void checkpoint(std::string& out, const std::string& token) override {
    const auto id =
        call<std::string>(token, [](JobCore& core, TimePoint now) { return core.checkpoint(now); });
    const auto outcome = host_.wait_then(
        kCheckpointWait, [&](const JobCore& core) { return core.outcome(id).has_value(); },
        [&](const JobCore& core) { return core.outcome(id); });
    if (!outcome)
      throw to_refused({Code::kTimedOut, fmt::format("checkpoint {} is not whole yet", id)});
    value_or_refuse(*outcome);
    out = id;
  }

  void change(const std::string& token, const std::string& key, const std::string& value) override {
    call<void>(token, [&](JobCore& core, TimePoint) { return core.change(key, value); });
  }

  void stop(const std::string& token, const std::string& reason) override {
    check_token(token);
    host_.stop(reason);
  }

 private:
  void check_token(const std::string& token) const {
    if (!same_secret(token, token_))
      throw to_refused({Code::kRefused,
                        "this is not the job's token; LEEWAY_TOKEN must be that of the scheduler"});
  }

  template <typename T, typename Use>
  T call(const std::string& token, Use use) {
    check_token(token);
    try {
      return value_or_refuse<T>(host_.with(use));
    } catch (const std::exception& error) {
      if (dynamic_cast<const rpc::Refused*>(&error) != nullptr) throw;
      throw to_refused({Code::kInternal, one_line(error.what())});
    }
  }

  template <typename Report>
  void watch(rpc::View& out, const rpc::Caller& who, std::int64_t epoch, std::int32_t wait_ms,
             const Report& report) {
    // A call that waits is no sign of life: it must return well before its caller counts as dead.
    const milliseconds longest =
        call<milliseconds>(who.token, [&](JobCore& core, TimePoint now) -> Result<milliseconds> {
          if (auto status = core.report(who, report, now); !status)
            return tl::unexpected(std::move(status.error()));
          return core.settings().member_timeout_ms / 3;
        });
    const milliseconds wait = std::clamp(milliseconds(wait_ms), milliseconds(0), longest);
    out = host_.wait_then(
        wait, [&](const JobCore& core) { return core.epoch() > epoch; },
        [](const JobCore& core) { return core.view(); });
  }

  JobHost& host_;
  const std::string token_;
};

// Listens once: TServer calls listen() again, and a second listening socket would get another port.
class ListeningSocket : public TServerSocket {
 public:
  ListeningSocket(const HostPort& at, milliseconds idle_timeout) : TServerSocket(at.host, at.port) {
    quiet_thrift();
    setSendTimeout(kSendTimeoutMs);
    setRecvTimeout(static_cast<int>(idle_timeout.count()));
    try {
      TServerSocket::listen();
    } catch (const TTransportException& error) {
      throw ConfigError(fmt::format("cannot listen on {}: {}; choose another address with --listen",
                                    at.text(), one_line(error.what())));
    }
  }
  void listen() override {}
};

}  // namespace

class Service::Impl {
 public:
  Impl(ServiceOptions options, JobSetup setup, std::unique_ptr<storage::ManifestStore> store)
      : at_(value_or_throw(parse_host_port(options.listen))),
        socket_(std::make_shared<ListeningSocket>(at_, options.idle_timeout)) {
    // Every member holds two connections at most; the rest is for people and the launcher.
    const std::uint32_t connections =
        options.max_connections > 0
            ? options.max_connections
            : 2 * (setup.servers + std::max(setup.places, setup.workers)) + 64;
    at_.port = static_cast<std::uint16_t>(socket_->getPort());
    host = std::make_unique<JobHost>(std::move(setup), std::move(store));
    server_ = std::make_unique<TThreadedServer>(
        std::make_shared<rpc::SchedulerProcessor>(
            std::make_shared<Handler>(*host, std::move(options.token))),
        socket_, framed(), bounded_binary());
    server_->setConcurrentClientLimit(connections);
    thread_ = std::jthread([this] { serve(); });
  }

  ~Impl() {
    host->close();
    server_->stop();
  }

  std::string address() const { return at_.text(); }

  std::unique_ptr<JobHost> host;

 private:
  void serve() noexcept {
    try {
      server_->serve();
    } catch (const std::exception& error) {
      host->with([&](JobCore& core, TimePoint) {
        core.interrupt(fmt::format("the scheduler cannot serve any more: {}", error.what()));
        return 0;
      });
    }
  }

  HostPort at_;
  std::shared_ptr<ListeningSocket> socket_;
  std::unique_ptr<TThreadedServer> server_;
  std::jthread thread_;
};

Service::Service(ServiceOptions options, JobSetup setup,
                 std::unique_ptr<storage::ManifestStore> store)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(setup), std::move(store))) {}
Service::~Service() = default;

std::string Service::address() const { return impl_->address(); }

void Service::stop(const std::string& reason) { impl_->host->stop(reason); }

void Service::interrupt(const std::string& reason) {
  impl_->host->with([&](JobCore& core, TimePoint) {
    core.interrupt(reason);
    return 0;
  });
  impl_->host->release();
}

rpc::Phase::type Service::wait(milliseconds linger) { return impl_->host->wait_over(linger); }

}  // namespace leeway::scheduler
