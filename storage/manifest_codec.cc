// A manifest is one JSON object:
//
//   "leeway_manifest": 1                  format version
//   "id": string
//   "created_unix_s": integer
//   "tensors": [[name, [dimensions]], ...]              in name order
//   "partitions": [[tensor, begin, elements, server], ...]  in tensor order, then begin
//   "state_arrays": integer               0..2 optimizer arrays beside the masters
//   "settings": {name: text, ...}
//   "workers": [[rank, clock, "state in hex"], ...]
//   "residuals": [[rank, "shard", "digest"], ...]       of workers above; absent without any
//   "shard_digests": [string, ...]        by server
//   "bytes": integer
#include "storage/manifest_codec.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace leeway::storage {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 1;
constexpr std::size_t kMaxBytes = 256u << 20;  // a million partitions take 40 MB

std::string to_hex(const std::vector<std::byte>& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (std::byte b : bytes) {
    text += kDigits[std::to_integer<unsigned>(b) >> 4];
    text += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return text;
}

// Thrown inside this file only, beside the JSON library's own exceptions.
struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

unsigned hex_digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a') + 10;
  throw Malformed("a worker's state is not hexadecimal");
}

std::vector<std::byte> from_hex(const std::string& text) {
  if (text.size() % 2 != 0) throw Malformed("a worker's state is not hexadecimal");
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < text.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(hex_digit(text[i]) << 4 | hex_digit(text[i + 1])));
  return bytes;
}

// The library converts between number types without a check.
template <typename T>
T number(const Json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<T>::max())
    throw Malformed("a number is not in its range");
  return value.get<T>();
}

template <std::size_t Size>
const Json& row(const Json& value) {
  if (!value.is_array() || value.size() != Size) throw Malformed("a row has a wrong length");
  return value;
}

Shape shape_of(const Json& value) {
  Shape shape;
  for (const Json& dimension : value.get_ref<const Json::array_t&>())
    shape.push_back(static_cast<std::int64_t>(number<std::uint64_t>(dimension)));
  if (!element_count(shape)) throw Malformed("a tensor's size overflows");
  return shape;
}

Manifest decode_fields(const Json& json) {
  Manifest manifest;
  manifest.id = json.at("id").get<std::string>();
  manifest.created_unix_s = number<std::uint64_t>(json.at("created_unix_s"));
  for (const Json& t : json.at("tensors").get_ref<const Json::array_t&>())
    manifest.tensors.push_back({row<2>(t)[0].get<std::string>(), shape_of(t[1])});
  for (const Json& p : json.at("partitions").get_ref<const Json::array_t&>())
    manifest.partitions.push_back({number<std::uint32_t>(row<4>(p)[0]), number<std::uint64_t>(p[1]),
                                   number<std::uint64_t>(p[2]), number<std::uint32_t>(p[3])});
  manifest.state_arrays = number<std::uint32_t>(json.at("state_arrays"));
  manifest.updates = number<std::uint64_t>(json.at("updates"));
  for (const auto& [name, value] : json.at("settings").get_ref<const Json::object_t&>())
    manifest.settings[name] = value.get<std::string>();
  for (const Json& w : json.at("workers").get_ref<const Json::array_t&>())
    manifest.workers[number<std::uint32_t>(row<3>(w)[0])] = {Clock(number<std::uint64_t>(w[1])),
                                                             from_hex(w[2].get<std::string>())};
  if (const auto residuals = json.find("residuals"); residuals != json.end())
    for (const Json& r : residuals->get_ref<const Json::array_t&>()) {
      const auto worker = manifest.workers.find(number<std::uint32_t>(row<3>(r)[0]));
      if (worker == manifest.workers.end()) throw Malformed("a residual is of no worker");
      worker->second.residual = {r[1].get<std::string>(), r[2].get<std::string>()};
    }
  for (const Json& digest : json.at("shard_digests").get_ref<const Json::array_t&>())
    manifest.shard_digests.push_back(digest.get<std::string>());
  manifest.bytes = number<std::uint64_t>(json.at("bytes"));
  return manifest;
}

}  // namespace

Result<std::string> encode_manifest(const Manifest& manifest) {
  Json tensors = Json::array();
  for (const ManifestTensor& t : manifest.tensors)
    tensors.push_back(Json::array({t.name, t.shape}));
  Json partitions = Json::array();
  for (const ManifestPartition& p : manifest.partitions)
    partitions.push_back(Json::array({p.tensor, p.begin, p.elements, p.server}));
  Json workers = Json::array();
  for (const auto& [rank, worker] : manifest.workers)
    workers.push_back(Json::array({rank, worker.clock.value(), to_hex(worker.state)}));
  Json residuals = Json::array();
  for (const auto& [rank, worker] : manifest.workers)
    if (worker.residual)
      residuals.push_back(Json::array({rank, worker.residual->shard, worker.residual->digest}));
  Json json = {{"leeway_manifest", kVersion},
               {"id", manifest.id},
               {"created_unix_s", manifest.created_unix_s},
               {"tensors", std::move(tensors)},
               {"partitions", std::move(partitions)},
               {"state_arrays", manifest.state_arrays},
               {"updates", manifest.updates},
               {"settings", Json(manifest.settings)},
               {"workers", std::move(workers)},
               {"shard_digests", manifest.shard_digests},
               {"bytes", manifest.bytes}};
  if (!residuals.empty()) json["residuals"] = std::move(residuals);
  std::string text;
  try {
    text = json.dump();
  } catch (const Json::exception& e) {
    return fail(
        Code::kInvalidArgument,
        fmt::format("checkpoint '{}' has a name that is not UTF-8: {}", manifest.id, e.what()));
  }
  if (text.size() > kMaxBytes)
    return fail(
        Code::kInvalidArgument,
        fmt::format("the manifest of checkpoint '{}' has {} bytes, more than {}: use larger "
                    "partitions",
                    manifest.id, text.size(), kMaxBytes));
  return text;
}

Result<Manifest> decode_manifest(const std::string& id, std::string_view text) {
  const auto damaged = [&](std::string_view why) {
    return fail(Code::kDataLoss,
                fmt::format("the manifest of checkpoint '{}' is damaged: {}", id, why));
  };
  if (text.size() > kMaxBytes) return damaged("it is too large");
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("leeway_manifest")) return damaged("it is no manifest");
  if (json["leeway_manifest"] != kVersion)
    return fail(
        Code::kUnsupported,
        fmt::format("the manifest of checkpoint '{}' has format version {}, this program "
                    "reads {}: use the version of Leeway that wrote it",
                    id, json["leeway_manifest"].dump(-1, ' ', true).substr(0, 20), kVersion));
  try {
    Manifest manifest = decode_fields(json);
    if (manifest.id != id) return damaged("it is that of another checkpoint");
    return manifest;
  } catch (const Json::exception& e) {
    return damaged(e.what());
  } catch (const Malformed& e) {
    return damaged(e.what());
  }
}

Status check_manifest(const Manifest& manifest) {
  const auto bad = [&](std::string_view why) {
    return fail(Code::kDataLoss, fmt::format("the manifest of checkpoint '{}' makes no sense: {}",
                                             manifest.id, why));
  };
  if (manifest.state_arrays > 2) return bad("more than two state arrays");
  std::size_t next = 0;
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const ManifestTensor& tensor = manifest.tensors[t];
    if (t > 0 && manifest.tensors[t - 1].name >= tensor.name) return bad("tensors out of order");
    const auto elements = element_count(tensor.shape);
    if (!elements) return bad(fmt::format("tensor '{}' has no size", tensor.name));
    std::uint64_t covered = 0;
    for (; next < manifest.partitions.size() && manifest.partitions[next].tensor == t; ++next) {
      const ManifestPartition& partition = manifest.partitions[next];
      if (partition.begin != covered || partition.elements > *elements - covered)
        return bad(fmt::format("the partitions of tensor '{}' do not join", tensor.name));
      covered += partition.elements;
      if (partition.server >= manifest.shard_digests.size())
        return bad(fmt::format("server {} has no shard digest", partition.server));
    }
    if (covered != *elements)
      return bad(fmt::format("the partitions of tensor '{}' do not cover it", tensor.name));
  }
  if (next != manifest.partitions.size()) return bad("partitions of no tensor, or out of order");
  return {};
}

}  // namespace leeway::storage
