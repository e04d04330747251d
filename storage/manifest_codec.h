// A manifest as text (JSON), as the manifest store keeps it. Plain functions; any thread.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"
#include "storage/checkpoint_store.h"

namespace leeway::storage {

// kInvalidArgument when a name is not UTF-8 or the text would pass what decode accepts.
Result<std::string> encode_manifest(const Manifest& manifest);
// `id` is the one in the key. Damage is kDataLoss, another format version kUnsupported; both name
// the checkpoint.
Result<Manifest> decode_manifest(const std::string& id, std::string_view text);

// What a reader relies on: tensors in name order with sizes that exist, partitions in order that
// cover every tensor exactly, a digest for every server named.
Status check_manifest(const Manifest& manifest);

}  // namespace leeway::storage
