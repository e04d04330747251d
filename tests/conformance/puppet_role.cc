// The puppet's side of puppet.h.
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>

#include "tests/conformance/puppet.h"
#include "tests/conformance/puppet_pipe.h"

namespace leeway::conformance {
namespace {

class Role {
 public:
  Role(int pipe, const PuppetOptions& options)
      : pipe_(pipe),
        endpoint_(open_endpoint({.max_transfer = options.max_transfer, .port = options.port})) {
    endpoint_->start([this](std::span<const std::byte>) {
      ++received_;
      received_.notify_all();
    });
  }

  void run() {
    Parcel greeting;
    greeting.put_all(endpoint_->info().address).put_text(endpoint_->info().printable);
    greeting.send_to(pipe_);
    for (Parcel question; question.receive_from(pipe_);) answer(question).send_to(pipe_);
  }

 private:
  Parcel answer(Parcel& question) {
    Parcel reply;
    switch (question.take<PuppetVerb>()) {
      case PuppetVerb::kAllocate: {
        const auto bytes = question.take<std::size_t>();
        const auto seed = question.take<std::uint64_t>();
        memories_.push_back(value_or_throw(endpoint_->allocate(bytes, transport::Access::kPeers)));
        if (seed != 0) fill(memories_.back(), seed);
        return reply.put_all(*memories_.back().remote());
      }
      case PuppetVerb::kConnect: {
        const auto address = question.take_all<std::byte>();
        std::promise<Peer> peer;
        endpoint_->post([&] { peer.set_value(value_or_throw(endpoint_->connect(address))); });
        peers_.push_back(peer.get_future().get());
        return reply.put(static_cast<std::uint32_t>(peers_.size() - 1));
      }
      case PuppetVerb::kDisconnect: {
        const Peer peer = peers_.at(question.take<std::uint32_t>());
        std::promise<void> over;
        endpoint_->post([&] {
          endpoint_->disconnect(peer);
          over.set_value();
        });
        over.get_future().wait();
        return reply;
      }
      case PuppetVerb::kTransfer:
        return reply.put(transfer(question));
      case PuppetVerb::kSend: {
        const Peer peer = peers_.at(question.take<std::uint32_t>());
        const std::string text = question.take_text();
        const auto times = question.take<std::uint32_t>();
        const auto wait = question.take<bool>();
        return reply.put(begin(times, wait, [&](Completion done) {
          endpoint_->send(peer, std::as_bytes(std::span(text)), soon(), std::move(done));
        }));
      }
      case PuppetVerb::kReceived: {
        const auto wanted = question.take<std::uint32_t>();
        const TimePoint until = soon();
        while (received_ < wanted && MonotonicClock::now() < until)
          std::this_thread::sleep_for(milliseconds(1));
        return reply.put(received_.load());
      }
      case PuppetVerb::kHash: {
        const auto& memory = memories_.at(question.take<std::uint32_t>());
        std::promise<std::uint64_t> value;  // of its thread, which may have written there
        endpoint_->post([&] { value.set_value(hash(memory.bytes())); });
        return reply.put(value.get_future().get());
      }
      case PuppetVerb::kStandStill: {
        std::promise<void> stands;
        endpoint_->post([&] {
          stands.set_value();
          while (true) std::this_thread::sleep_for(std::chrono::hours(1));
        });
        stands.get_future().wait();
        return reply;
      }
      case PuppetVerb::kDieWhenTouched: {
        const auto& memory = memories_.at(question.take<std::uint32_t>());
        const std::byte* const byte = memory.bytes().data() + question.take<std::uint64_t>();
        std::thread([byte] {
          while (!is_touched(byte)) std::this_thread::yield();
          raise(SIGKILL);
        }).detach();
        return reply;
      }
      case PuppetVerb::kDieWhileClosing: {
        std::atomic<bool> closing = false;
        std::thread killer([&] {
          closing.wait(false);
          raise(SIGKILL);
        });
        closing = true;
        closing.notify_all();
        endpoint_.reset();
        killer.join();
        return reply;
      }
      case PuppetVerb::kCloseEndpoint:
        endpoint_.reset();
        memories_.clear();
        return reply;
    }
    return reply;
  }

  std::uint32_t transfer(Parcel& question) {
    const Peer peer = peers_.at(question.take<std::uint32_t>());
    const auto memory = question.take<std::uint32_t>();
    const auto offset = question.take<std::uint64_t>();
    const auto size = question.take<std::uint64_t>();
    const LocalRange local{&memories_.at(memory), offset, size};
    RemoteRange remote;
    remote.memory = std::make_shared<RemoteMemory>(question.take_all<Window>());
    remote.offset = question.take<std::uint64_t>();
    const auto write = question.take<bool>();
    const auto times = question.take<std::uint32_t>();
    const auto wait = question.take<bool>();
    const milliseconds patience(question.take<milliseconds::rep>());
    return begin(times, wait, [&](Completion done) {
      const TimePoint deadline = in(patience);
      if (write)
        endpoint_->write(peer, local, remote, deadline, std::move(done));
      else
        endpoint_->read(peer, local, remote, deadline, std::move(done));
    });
  }

  template <typename Operation>
  std::uint32_t begin(std::uint32_t times, bool wait, Operation operation) {
    Tally tally;
    std::promise<void> begun;
    endpoint_->post([&] {
      for (std::uint32_t i = 0; i < times; ++i) operation(tally.next());
      begun.set_value();
    });
    begun.get_future().wait();
    if (!wait) return 0;
    tally.all_ended();
    return static_cast<std::uint32_t>(tally.good());
  }

  int pipe_;
  std::atomic<std::uint32_t> received_ = 0;
  std::vector<RegisteredMemory> memories_;
  std::vector<Peer> peers_;
  std::unique_ptr<Endpoint> endpoint_;  // last: its thread uses the rest
};

}  // namespace

int run_puppet(int pipe, const PuppetOptions& options) try {
  if (options.open_files != 0) {
    const rlimit limit{options.open_files, options.open_files};
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  Role(pipe, options).run();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "puppet: %s\n", error.what());
  return 1;
}

}  // namespace leeway::conformance
