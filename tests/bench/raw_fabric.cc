#include "tests/bench/raw_fabric.h"

#include <fmt/format.h>
#include <rdma/fi_rma.h>
#include <sched.h>

#include <algorithm>
#include <stdexcept>

#include "tests/unit/transport/libfabric_tcp.h"
#include "transport/fabric_domain.h"
#include "transport/host_memory.h"
#include "transport/providers.h"
#include "transport/signals.h"

namespace leeway::bench {

using transport::FabricDomain;
using transport::FabricRegistration;
using transport::Fid;
using transport::HostMemory;
using transport::Window;
using transport::testing::kLibfabricTcp;

struct RawFabric::Impl {
  std::shared_ptr<FabricDomain> domain;
  HostMemory region;
  std::unique_ptr<FabricRegistration> registration;
  Fid<fid_av> addresses;
  Fid<fid_cq> queue;
  Fid<fid_ep> endpoint;
  std::vector<std::byte> address;
  fi_addr_t peer = FI_ADDR_UNSPEC;
  Window remote;

  fi_context2 receiving{}, sending{};  // messages, in the first bytes of the memory
  bool echoes = false;

  void insert(std::span<const std::byte> to);
  void receive();
  void send();
  std::size_t completed(std::size_t& messages);
  ssize_t post(Move move, std::size_t at, std::size_t size, fi_context2& context);
  std::size_t completed();
};

namespace {

// A killed peer gives no completion on some providers.
constexpr std::chrono::seconds kDeadline{60};
constexpr std::size_t kMessage = 8;
constexpr std::uint32_t kPeers = 16;
constexpr const char* kAddress = "127.0.0.1";

// libfabric's own provider for one host, which Leeway does not use: its rail is measured against
// it.
constexpr std::string_view kShmNames[] = {"shm"};
constexpr transport::ProviderTraits kShm{.family = "shm",
                                         .names = kShmNames,
                                         .waiting = transport::Waiting::kPolling,
                                         .delivery = transport::Delivery::kAlways,
                                         .remedy = "make /dev/shm available to this process"};

void check(ssize_t error, const char* what) {
  if (error != 0)
    throw std::runtime_error(
        fmt::format("raw fabric: {}: {}", what, fi_strerror(static_cast<int>(-error))));
}

}  // namespace

RawFabric::RawFabric(const std::string& fabric, std::size_t bytes)
    : impl_(std::make_unique<Impl>()) {
  const transport::KeepSignals keep;
  for (const auto& traits : transport::provider_table()) transport::set_parameters(traits, kPeers);
  transport::set_parameters(kLibfabricTcp, kPeers);
  impl_->domain = std::make_shared<FabricDomain>(
      fabric == "shm" ? transport::choose_provider(kShm, {})
      : fabric == "tcp"
          ? transport::choose_provider(kLibfabricTcp, {.address = kAddress})
          : transport::choose_provider(transport::family_traits(fabric), {.address = kAddress}));
  impl_->region = value_or_throw(HostMemory::make(bytes, HostMemory::Kind::kPrivate));
  impl_->registration = value_or_throw(
      FabricRegistration::make(impl_->domain, impl_->region.view(), transport::Access::kPeers));
  fid_domain* const domain = impl_->domain->domain.get();

  fi_cq_attr queue_attributes{};
  queue_attributes.format = FI_CQ_FORMAT_CONTEXT;
  fid_cq* queue = nullptr;
  check(fi_cq_open(domain, &queue_attributes, &queue, nullptr), "fi_cq_open");
  impl_->queue.reset(queue);
  fi_av_attr address_attributes{};
  fid_av* addresses = nullptr;
  check(fi_av_open(domain, &address_attributes, &addresses, nullptr), "fi_av_open");
  impl_->addresses.reset(addresses);
  fid_ep* endpoint = nullptr;
  check(fi_endpoint(domain, impl_->domain->info.get(), &endpoint, nullptr), "fi_endpoint");
  impl_->endpoint.reset(endpoint);
  check(fi_ep_bind(endpoint, &addresses->fid, 0), "fi_ep_bind");
  check(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
  check(fi_enable(endpoint), "fi_enable");
  std::size_t length = 0;
  fi_getname(&endpoint->fid, nullptr, &length);
  impl_->address.resize(length);
  check(fi_getname(&endpoint->fid, impl_->address.data(), &length), "fi_getname");
}

RawFabric::~RawFabric() = default;

const std::vector<std::byte>& RawFabric::address() const noexcept { return impl_->address; }

Window RawFabric::memory() const noexcept { return impl_->registration->window(); }

void RawFabric::Impl::insert(std::span<const std::byte> to) {
  if (fi_av_insert(addresses.get(), to.data(), 1, &peer, 0, nullptr) != 1)
    throw std::runtime_error("raw fabric: fi_av_insert");
}

void RawFabric::connect(std::span<const std::byte> address, Window memory) {
  impl_->insert(address);
  impl_->remote = memory;
}

ssize_t RawFabric::Impl::post(Move move, std::size_t at, std::size_t size, fi_context2& context) {
  void* const local = region.bytes().data() + at;
  void* descriptor = registration->descriptor();
  if (move == Move::kRead)
    return fi_read(endpoint.get(), local, size, descriptor, peer, remote.address + at, remote.key,
                   &context);
  const iovec from{local, size};
  const fi_rma_iov to{remote.address + at, size, remote.key};
  fi_msg_rma write{};
  write.msg_iov = &from;
  write.desc = &descriptor;
  write.iov_count = 1;
  write.addr = peer;
  write.rma_iov = &to;
  write.rma_iov_count = 1;
  write.context = &context;
  return fi_writemsg(
      endpoint.get(), &write,
      FI_COMPLETION |
          (domain->traits->delivery == transport::Delivery::kAsked ? FI_DELIVERY_COMPLETE : 0));
}

// Transfers and sends; messages that came are counted apart.
std::size_t RawFabric::Impl::completed(std::size_t& messages) {
  fi_cq_entry entries[16];
  const ssize_t n = fi_cq_read(queue.get(), entries, std::size(entries));
  if (n == -FI_EAGAIN) return 0;
  if (n < 0) throw std::runtime_error("raw fabric: a transfer failed");
  std::size_t others = 0;
  for (ssize_t i = 0; i < n; ++i) ++(entries[i].op_context == &receiving ? messages : others);
  return others;
}

std::size_t RawFabric::Impl::completed() {
  std::size_t messages = 0;
  return completed(messages);
}

double RawFabric::transfer(Move move, std::size_t size, std::size_t count, std::size_t depth) {
  const std::size_t slots = std::max<std::size_t>(1, impl_->region.bytes().size() / size);
  std::vector<fi_context2> contexts(depth);
  std::size_t posted = 0, done = 0;
  const TimePoint start = MonotonicClock::now();
  while (done < count) {
    while (posted < count && posted - done < depth) {
      const ssize_t error =
          impl_->post(move, posted % slots * size, size, contexts[posted % depth]);
      if (error == -FI_EAGAIN) break;
      check(error, "post");
      ++posted;
    }
    const std::size_t now = impl_->completed();
    done += now;
    // An empty look gives the core away: on a busy machine the other process may need it to copy.
    if (now != 0) continue;
    if (MonotonicClock::now() - start > kDeadline)
      throw std::runtime_error("raw fabric: the other process does not answer");
    sched_yield();
  }
  return seconds_between(start, MonotonicClock::now());
}

void RawFabric::Impl::receive() {
  check(fi_recv(endpoint.get(), region.bytes().data(), kMessage, registration->descriptor(),
                FI_ADDR_UNSPEC, &receiving),
        "fi_recv");
}

void RawFabric::Impl::send() {
  ssize_t error = -FI_EAGAIN;
  std::size_t messages = 0;
  while (error == -FI_EAGAIN) {
    error = fi_send(endpoint.get(), region.bytes().data() + kMessage, kMessage,
                    registration->descriptor(), peer, &sending);
    if (error == -FI_EAGAIN) completed(messages);
  }
  check(error, "fi_send");
}

std::vector<double> RawFabric::round_trips(std::size_t count) {
  std::vector<double> seconds;
  for (std::size_t i = 0; i < count; ++i) {
    const TimePoint start = MonotonicClock::now();
    impl_->receive();
    impl_->send();
    std::size_t messages = 0, sent = 0;
    while (messages == 0 || sent == 0) {
      const std::size_t before = messages, others = impl_->completed(messages);
      sent += others;
      if (others + messages == before) sched_yield();
      if (MonotonicClock::now() - start > kDeadline)
        throw std::runtime_error("raw fabric: the other process does not answer");
    }
    seconds.push_back(seconds_between(start, MonotonicClock::now()));
  }
  return seconds;
}

void RawFabric::echo(std::span<const std::byte> address) {
  impl_->insert(address);
  impl_->receive();
  impl_->echoes = true;
}

void RawFabric::progress() {
  std::size_t messages = 0;
  const std::size_t others = impl_->completed(messages);
  if (messages > 0 && impl_->echoes) {
    impl_->receive();
    impl_->send();
  }
  if (others + messages == 0) sched_yield();
}

}  // namespace leeway::bench
