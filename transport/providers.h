// What each family of providers promises, its limits and quirks, as one table; and the choice among
// them. The rest of this folder asks the table and what fi_getinfo returned, never a provider's
// name.
//
// Called while opening an endpoint, from one thread. Table entries live for ever.
#pragma once

#include <span>
#include <string_view>

#include "transport/endpoint.h"
#include "transport/fabric_handles.h"

namespace leeway::transport {

enum class Waiting {
  kDescriptor,  // sleep in poll() on the completion queue's descriptor
  kPolling,     // the queue has none that works: yield while traffic flows, then short sleeps
};

// How a peer that was killed looks from here.
enum class DeadPeer {
  kError,    // operations fail within moments
  kSilence,  // no completion, ever: only our own deadline ends an operation
};

struct ProviderTraits {
  std::string_view family;
  std::span<const std::string_view> names;  // libfabric's names for it, best first
  Waiting waiting;
  DeadPeer dead_peer;
  // Makes the provider use virtual addresses and keys of its own, as EFA and verbs do anyway.
  bool strict_memory;
  bool pins_memory;     // registering counts against `ulimit -l`
  bool binds_to_ip;     // takes EndpointOptions::bind
  bool sized_by_peers;  // queue lengths follow FI_UNIVERSE_SIZE
  // Writes ask for FI_DELIVERY_COMPLETE, one by one. verbs does not know the flag: the
  // acknowledgement of its reliable connections already says that the peer's NIC has the bytes.
  bool delivery_complete;
  std::string_view remedy;  // what to do when it is not there
};

std::span<const ProviderTraits> provider_table();

struct Choice {
  const ProviderTraits* traits;
  Info info;
};

// Throws ConfigError (one line: fabric, what was found, remedy). Never falls back to another.
Choice choose_provider(const EndpointOptions& options);

}  // namespace leeway::transport
