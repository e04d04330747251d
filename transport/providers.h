// What each family of providers promises, its limits and quirks, as one table. The rest of this
// folder asks the table and what fi_getinfo returned, never a provider's name.
//
// Called while opening an endpoint, from one thread. Table entries live for ever.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/result.h"
#include "transport/fabric_handles.h"

namespace leeway::transport {

enum class Waiting {
  kDescriptor,  // sleep in poll() on the completion queue's descriptor
  kPolling,     // the queue has none that works: yield while traffic flows, then short sleeps
};

// What makes the completion of a write mean that the bytes are in the peer's memory.
enum class Delivery {
  kAsked,   // FI_DELIVERY_COMPLETE, write by write
  kAlways,  // reliable connections acknowledge what arrived; verbs does not know the flag
};

struct ProviderTraits {
  bool ours() const noexcept { return names.empty(); }  // no provider of libfabric's

  std::string_view family;
  std::span<const std::string_view> names;  // libfabric's names for it, best first; none: our own
  Waiting waiting;
  // Makes the provider use virtual addresses and keys of its own, as EFA and verbs do anyway: for
  // tests of that where there is neither.
  bool strict_memory;
  bool pins_memory;     // registering counts against `ulimit -l`
  bool maps_memory;     // peers map what they may reach: it has to be shareable
  bool binds_to_ip;     // has an endpoint of its own at each IP address
  bool sized_by_peers;  // queue lengths follow FI_UNIVERSE_SIZE
  // Queue entries of each connection under rxm, where that is a layer of the provider; else 0. It
  // touches buffers for all of them at once: its own choice costs 90 MB and a second an endpoint.
  std::size_t rxm_queue;
  // Under rxm: one queue of so many receives for all connections; 0 leaves that to rxm. With a
  // queue for each, libfabric 1.17 was seen to crash when a peer left: it closed the connection,
  // found a message of it still unread, and posted the buffer to the connection again.
  std::size_t rxm_shared_receives;
  Delivery delivery;
  // A message that is done has come to the peer's host, so the way works. Else only this host's
  // kernel is known to have it.
  bool sends_arrive;
  std::string_view remedy;  // what to do when it is not there
};

std::span<const ProviderTraits> provider_table();
const ProviderTraits& family_traits(std::string_view family);  // one that is in the table

struct Choice {
  const ProviderTraits* traits;
  Info info;
};

// Where a rail of libfabric's is to be opened: an IP address for families that bind to one, else a
// domain's name; empty = the first that there is.
struct Place {
  std::string address;
  std::uint16_t port = 0;  // 0 = any that is free
  std::string domain;
  bool device_memory = false;  // with FI_HMEM, or not at all
};

// What libfabric offers of this family at this place, or null.
Info look_for(const ProviderTraits& traits, const Place& place);
// The families of libfabric that are here, "tcp, verbs".
std::string what_is_there();
// Tells libfabric the size of the job, before its first use.
void set_parameters(const ProviderTraits& traits, std::uint32_t peers);

// look_for(), or ConfigError: one line with the fabric, what was found, and the remedy.
Choice choose_provider(const ProviderTraits& traits, const Place& place);

}  // namespace leeway::transport
