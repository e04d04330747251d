#include "transport/endpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "transport/endpoint_impl.h"
#include "transport/registered_memory.h"
#include "transport/signals.h"

namespace leeway::transport {
namespace {

// Fits the eager protocol of every provider here, and several hundred entries of a push.
constexpr std::size_t kMaxMessage = 8192;
constexpr std::size_t kReceivesPerPeer = 16;
constexpr std::size_t kMinReceives = 64, kMaxReceives = 1024;
constexpr std::size_t kMaxSends = 4096;

std::string printable_address(fid_av* addresses, const void* raw) {
  char text[256];
  std::size_t length = sizeof text;
  const char* printed = fi_av_straddr(addresses, raw, text, &length);
  return printed != nullptr ? std::string(printed, strnlen(printed, sizeof text)) : "?";
}

}  // namespace

Endpoint::Impl::Impl(const EndpointOptions& options) : options_(options) {
  Choice choice = choose_provider(options);
  const KeepSignals keep;
  domain_ = std::make_shared<Domain>(std::move(choice));
  info_.max_message = std::min(kMaxMessage, domain_->info->ep_attr->max_msg_size);
  if (domain_->traits->inject_sized_messages)
    info_.max_message = std::min(info_.max_message, domain_->info->tx_attr->inject_size);
  segment_limit_ = std::max<std::size_t>(
      1, std::min(options.max_transfer, domain_->info->ep_attr->max_msg_size));
  open_objects(options);
  describe();
}

Endpoint::Impl::~Impl() { stop(); }

void Endpoint::Impl::open_objects(const EndpointOptions& options) {
  const ProviderTraits& traits = *domain_->traits;
  fi_info& info = *domain_->info;
  const auto check = [&](ssize_t error, const char* what) {
    if (error != 0)
      throw ConfigError(fmt::format("fabric {}: {} of provider {} failed: {}{}", traits.family,
                                    what, info.fabric_attr->prov_name,
                                    fi_strerror(static_cast<int>(-error)),
                                    locked_memory_hint(traits, error)));
  };

  fi_cq_attr queue_attributes{};
  queue_attributes.size = info.tx_attr->size + info.rx_attr->size;
  queue_attributes.format = FI_CQ_FORMAT_MSG;
  queue_attributes.wait_obj = traits.waiting == Waiting::kDescriptor ? FI_WAIT_FD : FI_WAIT_NONE;
  fid_cq* queue = nullptr;
  check(fi_cq_open(domain_->domain.get(), &queue_attributes, &queue, nullptr), "fi_cq_open");
  queue_.reset(queue);

  fi_av_attr address_attributes{};
  address_attributes.type = info.domain_attr->av_type;
  address_attributes.count = std::max<std::size_t>(options.peers, 16);
  fid_av* addresses = nullptr;
  check(fi_av_open(domain_->domain.get(), &address_attributes, &addresses, nullptr), "fi_av_open");
  addresses_fid_.reset(addresses);

  fid_ep* endpoint = nullptr;
  check(fi_endpoint(domain_->domain.get(), &info, &endpoint, nullptr), "fi_endpoint");
  endpoint_.reset(endpoint);
  check(fi_ep_bind(endpoint, &addresses->fid, 0), "fi_ep_bind");
  check(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
  check(fi_enable(endpoint), "fi_enable");
  waiter_ = std::make_unique<Waiter>(traits.waiting, domain_->fabric.get(), queue);

  const std::size_t receives =
      std::min({std::max(kMinReceives, kReceivesPerPeer * options.peers), kMaxReceives,
                std::max<std::size_t>(info.rx_attr->size, 1)});
  receive_region_ =
      value_or_throw(Region::make(domain_, receives * info_.max_message, Access::kOwn));
  send_buffers_ = std::make_unique<SendBuffers>(domain_, info_.max_message, kMaxSends);
  receive_buffers_.resize(receives);
  for (std::size_t i = 0; i < receives; ++i) {
    receive_buffers_[i].kind = Posted::Kind::kReceive;
    receive_buffers_[i].offset = i * info_.max_message;
    repost(receive_buffers_[i]);
  }
}

void Endpoint::Impl::describe() {
  std::size_t length = 0;
  fi_getname(&endpoint_->fid, nullptr, &length);
  info_.address.resize(length);
  if (const int error = fi_getname(&endpoint_->fid, info_.address.data(), &length); error != 0)
    throw ConfigError(fmt::format("fabric {}: the endpoint has no address: {}",
                                  domain_->traits->family, fi_strerror(-error)));
  info_.address.resize(length);
  info_.fabric = domain_->traits->family;
  info_.provider = domain_->info->fabric_attr->prov_name;
  info_.device = domain_->info->domain_attr->name;
  info_.printable = printable_address(addresses_fid_.get(), info_.address.data());
}

EndpointCounters Endpoint::Impl::counters() const noexcept {
  return {.messages_sent = messages_sent_.read(),
          .messages_received = messages_received_.read(),
          .bytes_read = bytes_read_.read(),
          .bytes_written = bytes_written_.read()};
}

Endpoint::Endpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Endpoint::~Endpoint() = default;

std::unique_ptr<Endpoint> Endpoint::open(const EndpointOptions& options) {
  return std::unique_ptr<Endpoint>(new Endpoint(std::make_unique<Impl>(options)));
}

const EndpointInfo& Endpoint::info() const noexcept { return impl_->info(); }

Result<RegisteredMemory> Endpoint::allocate(std::size_t bytes, Access access) {
  auto region = Region::make(impl_->domain(), bytes, access);
  if (!region) return tl::unexpected(std::move(region).error());
  auto remote = std::make_shared<RemoteMemory>();
  if (access == Access::kPeers)
    remote->push_back({(*region)->remote_address(0), (*region)->remote_key()});
  return RegisteredMemory(std::make_unique<RegisteredMemory::Impl>(
      RegisteredMemory::Impl{std::move(*region), std::move(remote)}));
}

void Endpoint::start(MessageHandler handler) { impl_->start(std::move(handler)); }
bool Endpoint::post(Task task) { return impl_->post(std::move(task)); }
Result<Peer> Endpoint::connect(std::span<const std::byte> address) {
  return impl_->connect(address);
}
void Endpoint::disconnect(Peer peer) { impl_->disconnect(peer); }
void Endpoint::send(Peer peer, std::span<const std::byte> message, TimePoint deadline,
                    Completion done) {
  impl_->send(peer, message, deadline, std::move(done));
}
void Endpoint::read(Peer peer, LocalRange into, RemoteRange from, TimePoint deadline,
                    Completion done) {
  impl_->transfer(Operation::Kind::kRead, peer, into, from, deadline, std::move(done));
}
void Endpoint::write(Peer peer, LocalRange from, RemoteRange to, TimePoint deadline,
                     Completion done) {
  impl_->transfer(Operation::Kind::kWrite, peer, from, to, deadline, std::move(done));
}
void Endpoint::at(TimePoint when, Task task) { impl_->at(when, std::move(task)); }
EndpointCounters Endpoint::counters() const noexcept { return impl_->counters(); }

}  // namespace leeway::transport
