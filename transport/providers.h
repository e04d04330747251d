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

// What makes the completion of a write mean that the bytes are in the peer's memory.
enum class Delivery {
  kAsked,     // FI_DELIVERY_COMPLETE, write by write
  kAlways,    // reliable connections acknowledge what arrived; verbs does not know the flag
  kByKernel,  // process_vm_writev is done when it returns; asked for where that is not allowed
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
  // Queue entries of each connection under rxm, where that is a layer of the provider; else 0. It
  // touches buffers for all of them at once: its own choice costs 90 MB and a second an endpoint.
  std::size_t rxm_queue;
  // Under rxm: one queue of so many receives for all connections; 0 leaves that to rxm. With a
  // queue for each, libfabric 1.17 was seen to crash when a peer left: it closed the connection,
  // found a message of it still unread, and posted the buffer to the connection again.
  std::size_t rxm_shared_receives;
  Delivery delivery;
  // Messages no longer than the provider's inject size. A longer one waits for the peer's answer,
  // and shm looks at answers in order: one that never comes would hold up those of everybody else.
  bool inject_sized_messages;
  // Closing waits a moment for peers that have not answered our first contact: libfabric 1.17's shm
  // crashes *them* when they look at a greeting whose sender has gone.
  bool lingers;
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
