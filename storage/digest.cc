// The byte stream that is hashed (XXH3-128, integers little-endian):
//
//   "leeway-digest-1\0"                                  16 bytes
//   then, for every tensor in ascending name order:
//     u64 length of the name, the name's bytes
//     u64 rank, then rank * i64 dimension
//     the elements in order, 4 bytes each: IEEE FP32, little-endian, bits as they are
//
// How many elements follow is known from the shape, so no two models give one stream. The digits
// are the canonical (big-endian) form of the hash, as `xxhsum -H2` prints it.
#include "storage/digest.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <bit>
#include <cstdint>

#include "common/result.h"

namespace leeway::storage {

static_assert(std::endian::native == std::endian::little);

struct ModelDigest::State {
  XXH3_state_t* hash = XXH3_createState();
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(hash); }

  void bytes(const void* data, std::size_t size) {
    if (size != 0) XXH3_128bits_update(hash, data, size);
  }
  void integer(std::uint64_t value) { bytes(&value, sizeof value); }
};

ModelDigest::ModelDigest() : state_(std::make_unique<State>()) {
  LEEWAY_CHECK(state_->hash != nullptr);
  XXH3_128bits_reset(state_->hash);
  state_->bytes("leeway-digest-1", 16);
}

ModelDigest::~ModelDigest() = default;

void ModelDigest::begin_tensor(std::string_view name, const Shape& shape) {
  state_->integer(name.size());
  state_->bytes(name.data(), name.size());
  state_->integer(shape.size());
  for (std::int64_t dimension : shape) state_->integer(static_cast<std::uint64_t>(dimension));
}

void ModelDigest::add(std::span<const float> values) {
  state_->bytes(values.data(), values.size_bytes());
}

std::string ModelDigest::hex() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_->hash));
  std::string text;
  for (unsigned char byte : canonical.digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace leeway::storage
