#include "transport/fabric_rail.h"

#include <fmt/format.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "common/log.h"
#include "common/monotonic.h"
#include "transport/signals.h"

namespace leeway::transport {
namespace {

// Fits the eager protocol of every provider here, and several hundred entries of a push.
constexpr std::size_t kMaxMessage = 8192;
constexpr std::size_t kReceivesPerPeer = 16;
constexpr std::size_t kMinReceives = 64, kMaxReceives = 1024;
constexpr std::size_t kSendBlock = 64, kMaxSends = 4096;

// libfabric's errors as ours. What it says of a peer that died differs from provider to provider,
// so everything that is not clearly the caller's or the machine's counts as the peer's absence.
Code code_of(int error) {
  switch (error) {
    case FI_EINVAL:
    case FI_EACCES:
    case FI_EFAULT:
    case FI_EMSGSIZE:
    case FI_ENOKEY:
    case FI_EKEYREJECTED:
    case FI_ETRUNC:
      return Code::kInvalidArgument;
    case FI_ENOMEM:
    case FI_EMFILE:
      return Code::kResourceExhausted;
    case FI_ENOSYS:
    case FI_EOPNOTSUPP:
      return Code::kUnsupported;
    default:
      return Code::kUnavailable;
  }
}

std::string printable_address(fid_av* addresses, const void* raw) {
  char text[256];
  std::size_t length = sizeof text;
  const char* printed = fi_av_straddr(addresses, raw, text, &length);
  return printed != nullptr ? std::string(printed, strnlen(printed, sizeof text)) : "?";
}

}  // namespace

FabricRail::FabricRail(Choice choice, std::uint32_t peers, const Standing& standing) {
  const KeepSignals keep;
  domain_ = std::make_shared<FabricDomain>(std::move(choice));
  const fi_info& info = *domain_->info;
  info_.traits = domain_->traits;
  info_.provider = info.fabric_attr->prov_name;
  info_.device = info.domain_attr->name;
  info_.max_message = std::min(kMaxMessage, info.ep_attr->max_msg_size);
  info_.max_transfer = std::max<std::size_t>(1, info.ep_attr->max_msg_size);
  if (info.nic != nullptr && info.nic->link_attr != nullptr)
    info_.megabits = static_cast<std::uint32_t>(info.nic->link_attr->speed / 1'000'000);
  if (info_.megabits == 0) info_.megabits = standing.megabits;
  info_.numa_node = standing.numa_node;
  info_.near = standing.near;
  info_.device_memory = (info.caps & FI_HMEM) != 0;
  info_.device_dmabuf = info_.device_memory && registers_dmabuf(info);
  open_objects(peers);
  describe();
}

FabricRail::~FabricRail() = default;

void FabricRail::close() noexcept { endpoint_.reset(); }

void FabricRail::open_objects(std::uint32_t peers) {
  fi_info& info = *domain_->info;
  const auto check = [&](ssize_t error, const char* what) {
    if (error != 0)
      throw ConfigError(fmt::format(
          "fabric {}: {} of provider {} failed: {}{}", info_.traits->family, what, info_.provider,
          fi_strerror(static_cast<int>(-error)), locked_memory_hint(*info_.traits, error)));
  };
  const bool descriptor = info_.traits->waiting == Waiting::kDescriptor;
  fi_cq_attr queue_attributes{};
  queue_attributes.size = info.tx_attr->size + info.rx_attr->size;
  queue_attributes.format = FI_CQ_FORMAT_MSG;
  queue_attributes.wait_obj = descriptor ? FI_WAIT_FD : FI_WAIT_NONE;
  fid_cq* queue = nullptr;
  check(fi_cq_open(domain_->domain.get(), &queue_attributes, &queue, nullptr), "fi_cq_open");
  queue_.reset(queue);
  if (descriptor)
    check(fi_control(&queue_->fid, FI_GETWAIT, &queue_descriptor_), "fi_control(FI_GETWAIT)");

  fi_av_attr address_attributes{};
  address_attributes.type = info.domain_attr->av_type;
  address_attributes.count = std::max<std::size_t>(peers, 16);
  fid_av* addresses = nullptr;
  check(fi_av_open(domain_->domain.get(), &address_attributes, &addresses, nullptr), "fi_av_open");
  addresses_fid_.reset(addresses);

  fid_ep* endpoint = nullptr;
  check(fi_endpoint(domain_->domain.get(), &info, &endpoint, nullptr), "fi_endpoint");
  endpoint_.reset(endpoint);
  check(fi_ep_bind(endpoint, &addresses->fid, 0), "fi_ep_bind");
  check(fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
  check(fi_enable(endpoint), "fi_enable");

  const std::size_t receives =
      std::min({std::max(kMinReceives, kReceivesPerPeer * peers), kMaxReceives,
                std::max<std::size_t>(info.rx_attr->size, 1)});
  receive_buffers_ = value_or_throw(make_buffers(receives));
  receives_.resize(receives);
  for (std::size_t i = 0; i < receives; ++i) {
    receives_[i].buffer = i;
    repost(i);
  }
}

void FabricRail::describe() {
  std::size_t length = 0;
  fi_getname(&endpoint_->fid, nullptr, &length);
  info_.address.resize(length);
  if (const int error = fi_getname(&endpoint_->fid, info_.address.data(), &length); error != 0)
    throw ConfigError(fmt::format("fabric {}: the endpoint has no address: {}",
                                  info_.traits->family, fi_strerror(-error)));
  info_.address.resize(length);
  info_.printable = printable_address(addresses_fid_.get(), info_.address.data());
}

std::string FabricRail::printable(std::span<const std::byte> address) const {
  return plausible(address) ? printable_address(addresses_fid_.get(), address.data()) : "?";
}

// Providers read as many bytes as their own addresses have, whatever we hand them.
bool FabricRail::plausible(std::span<const std::byte> address) const {
  if (domain_->info->addr_format == FI_ADDR_STR)
    return !address.empty() && address.back() == std::byte{0} && address.size() <= 256;
  return address.size() == info_.address.size();
}

// --- memory --------------------------------------------------------------------------------------

Result<std::unique_ptr<Registration>> FabricRail::enlist(const ForeignMemory& memory,
                                                         Access access) {
  auto made = FabricRegistration::make(domain_, memory, access);
  if (!made) return tl::unexpected(std::move(made).error());
  return std::unique_ptr<Registration>(std::move(*made));
}

Result<FabricRail::Buffers> FabricRail::make_buffers(std::size_t count) const {
  auto memory = HostMemory::make(count * info_.max_message, HostMemory::Kind::kPrivate);
  if (!memory) return tl::unexpected(std::move(memory).error());
  auto registration = FabricRegistration::make(domain_, memory->view(), Access::kOwn);
  if (!registration) return tl::unexpected(std::move(registration).error());
  return Buffers{std::move(*memory), std::move(*registration)};
}

// --- peers ---------------------------------------------------------------------------------------

Result<RailPeer> FabricRail::connect(std::span<const std::byte> address) {
  const std::string raw(reinterpret_cast<const char*>(address.data()), address.size());
  auto entry = addresses_.find(raw);
  if (entry == addresses_.end()) {
    if (!plausible(address))
      return fail(Code::kInvalidArgument, fmt::format("{} bytes are no address of provider {}",
                                                      address.size(), info_.provider));
    auto fresh = std::make_unique<Address>();
    fresh->raw = raw;
    const int inserted =
        fi_av_insert(addresses_fid_.get(), raw.data(), 1, &fresh->index, 0, nullptr);
    if (inserted != 1 || fresh->index == FI_ADDR_NOTAVAIL)
      return fail(Code::kUnavailable,
                  fmt::format("the address {} is not accepted by provider {}: {}",
                              printable_address(addresses_fid_.get(), raw.data()), info_.provider,
                              inserted < 0 ? fi_strerror(-inserted) : "malformed"));
    entry = addresses_.emplace(raw, std::move(fresh)).first;
  }
  ++entry->second->peers;
  const RailPeer peer(next_peer_++);
  peers_.emplace(peer.value(), entry->second.get());
  return peer;
}

void FabricRail::disconnect(RailPeer peer) {
  const auto found = peers_.find(peer.value());
  if (found == peers_.end()) return;
  Address& address = *found->second;
  peers_.erase(found);
  --address.peers;
  forget_if_unused(address);
}

// Taking an address away under a transfer is undefined; one whose transfers never end stays.
void FabricRail::forget_if_unused(Address& address) {
  if (address.under_way != 0 || address.peers != 0) return;
  fi_av_remove(addresses_fid_.get(), &address.index, 1, 0);
  addresses_.erase(addresses_.find(address.raw));
}

// --- posting -------------------------------------------------------------------------------------

FabricRail::Posted* FabricRail::take(Address& address, Ticket& ticket) {
  if (free_posted_.empty()) {
    posted_.push_back(std::make_unique<Posted>());
    free_posted_.push_back(posted_.back().get());
  }
  Posted* posted = free_posted_.back();
  free_posted_.pop_back();
  posted->ticket = &ticket;
  posted->address = &address;
  return posted;
}

Result<Rail::Post> FabricRail::outcome(ssize_t error, Posted* posted, std::string_view verb) {
  if (error == 0) {
    ++posted->address->under_way;
    return Post::kTaken;
  }
  free_posted_.push_back(posted);
  if (error == -FI_EAGAIN) return Post::kTryAgain;
  const int code = static_cast<int>(-error);
  return fail(code_of(code), fmt::format("{}: {}", verb, fi_strerror(code)));
}

void FabricRail::grow_send_buffers() {
  if (send_blocks_.size() * kSendBlock >= kMaxSends) return;
  auto block = make_buffers(kSendBlock);
  if (!block) {
    log::warning("fabric {}: no more buffers for messages: {}", info_.traits->family,
                 block.error().message);
    return;
  }
  send_blocks_.push_back(std::move(*block));
  for (std::size_t i = 0; i < kSendBlock; ++i)
    free_sends_.push_back((send_blocks_.size() - 1) * kSendBlock + i);
}

Result<Rail::Post> FabricRail::send(RailPeer peer, std::span<const std::byte> message,
                                    Ticket& ticket) {
  const auto found = peers_.find(peer.value());
  LEEWAY_CHECK(found != peers_.end() && message.size() <= info_.max_message);
  if (free_sends_.empty()) grow_send_buffers();
  if (free_sends_.empty()) return Post::kTryAgain;
  const std::size_t number = free_sends_.back();
  const Buffers& block = send_blocks_[number / kSendBlock];
  const auto room = block.memory.bytes().subspan(number % kSendBlock * info_.max_message);
  std::copy(message.begin(), message.end(), room.begin());
  Posted* posted = take(*found->second, ticket);
  posted->buffer = number;
  auto result =
      outcome(fi_send(endpoint_.get(), room.data(), message.size(),
                      block.registration->descriptor(), found->second->index, &posted->context),
              posted, "message");
  if (result && *result == Post::kTaken)
    free_sends_.pop_back();
  else
    posted->buffer = kMaxSends;
  return result;
}

Result<Rail::Post> FabricRail::read(RailPeer peer, LocalPiece into, Window from, Ticket& ticket) {
  const auto found = peers_.find(peer.value());
  LEEWAY_CHECK(found != peers_.end());
  Posted* posted = take(*found->second, ticket);
  posted->buffer = kMaxSends;
  const auto* registration = static_cast<const FabricRegistration*>(into.registration);
  return outcome(fi_read(endpoint_.get(), into.data, into.size, registration->descriptor(),
                         found->second->index, from.address, from.key, &posted->context),
                 posted, "read");
}

Result<Rail::Post> FabricRail::write(RailPeer peer, LocalPiece from, Window to, Ticket& ticket) {
  const auto found = peers_.find(peer.value());
  LEEWAY_CHECK(found != peers_.end());
  Posted* posted = take(*found->second, ticket);
  posted->buffer = kMaxSends;
  // fi_writemsg, because a plain fi_write of some providers forgets delivery-complete.
  const iovec local{.iov_base = from.data, .iov_len = from.size};
  const fi_rma_iov remote{.addr = to.address, .len = from.size, .key = to.key};
  void* descriptor = static_cast<const FabricRegistration*>(from.registration)->descriptor();
  fi_msg_rma write{};
  write.msg_iov = &local;
  write.desc = &descriptor;
  write.iov_count = 1;
  write.addr = found->second->index;
  write.rma_iov = &remote;
  write.rma_iov_count = 1;
  write.context = &posted->context;
  const bool ask = info_.traits->delivery == Delivery::kAsked;
  return outcome(
      fi_writemsg(endpoint_.get(), &write, FI_COMPLETION | (ask ? FI_DELIVERY_COMPLETE : 0)),
      posted, "write");
}

// --- the queue -----------------------------------------------------------------------------------

std::span<std::byte> FabricRail::receive_room(std::size_t receive) const {
  return receive_buffers_.memory.bytes().subspan(receive * info_.max_message, info_.max_message);
}

void FabricRail::repost(std::size_t receive) {
  const auto room = receive_room(receive);
  const ssize_t error = fi_recv(endpoint_.get(), room.data(), room.size(),
                                receive_buffers_.registration->descriptor(), FI_ADDR_UNSPEC,
                                &receives_[receive].context);
  if (error != 0) unposted_receives_.push_back(receive);
}

bool FabricRail::retry_receives() {
  const std::size_t before = unposted_receives_.size();
  while (!unposted_receives_.empty()) {
    const std::size_t receive = unposted_receives_.back();
    const std::size_t left = unposted_receives_.size();
    unposted_receives_.pop_back();
    repost(receive);
    if (unposted_receives_.size() == left) break;
  }
  return unposted_receives_.size() < before;
}

bool FabricRail::poll(RailUser& user) {
  std::array<fi_cq_msg_entry, 32> entries;
  const ssize_t n = fi_cq_read(queue_.get(), entries.data(), entries.size());
  for (ssize_t i = 0; i < n; ++i) {
    const fi_cq_msg_entry& entry = entries[static_cast<std::size_t>(i)];
    auto& posted = *static_cast<Posted*>(entry.op_context);
    if (posted.ticket != nullptr) {
      over(posted, user, {});
    } else {
      user.message(receive_room(posted.buffer).first(std::min(entry.len, info_.max_message)));
      repost(posted.buffer);
    }
  }
  if (n == -FI_EAVAIL) read_error(user);
  return retry_receives() || n > 0 || n == -FI_EAVAIL;
}

void FabricRail::over(Posted& posted, RailUser& user, Status status) {
  if (posted.buffer != kMaxSends) free_sends_.push_back(posted.buffer);
  Ticket& ticket = *std::exchange(posted.ticket, nullptr);
  Address& address = *std::exchange(posted.address, nullptr);
  free_posted_.push_back(&posted);
  --address.under_way;
  forget_if_unused(address);
  user.done(ticket, std::move(status));
}

void FabricRail::read_error(RailUser& user) {
  fi_cq_err_entry entry{};
  if (fi_cq_readerr(queue_.get(), &entry, 0) != 1) return;
  char space[256] = "";
  const char* said =
      fi_cq_strerror(queue_.get(), entry.prov_errno, entry.err_data, space, sizeof space);
  std::string text = fi_strerror(entry.err);
  if (said != nullptr && *said != '\0' && text != said) text += fmt::format(" ({})", said);
  auto* posted = static_cast<Posted*>(entry.op_context);
  if (posted == nullptr) {
    log::warning("fabric {}: {}", info_.traits->family, text);
  } else if (posted->ticket != nullptr) {
    over(*posted, user, fail(code_of(entry.err), std::move(text)));
  } else {
    // A message longer than agreed, or one that broke off: the buffer is good for the next.
    if (entry.err != FI_ECANCELED)
      log::warning("fabric {}: a message was lost: {}", info_.traits->family, text);
    repost(posted->buffer);
  }
}

bool FabricRail::arm() noexcept {
  if (!unposted_receives_.empty()) return false;
  if (queue_descriptor_ < 0) return true;
  // Says that the queue is empty and its descriptor armed.
  fid* queue = &queue_->fid;
  return fi_trywait(domain_->fabric.get(), &queue, 1) == FI_SUCCESS;
}

}  // namespace leeway::transport
