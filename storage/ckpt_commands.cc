#include "storage/ckpt_commands.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <ostream>

#include "storage/checkpoint_store.h"
#include "storage/manifest_codec.h"
#include "storage/safetensors.h"

namespace leeway::storage {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kExportElements = 8u << 20;  // a buffer of 32 MiB

std::uint64_t parameters(const Manifest& manifest) {
  std::uint64_t sum = 0;
  for (const ManifestPartition& p : manifest.partitions) sum += p.elements;
  return sum;
}

std::string time_text(std::uint64_t unix_s) {
  std::time_t time = static_cast<std::time_t>(unix_s);
  std::tm utc{};
  if (gmtime_r(&time, &utc) == nullptr) return "?";
  return fmt::format("{:%Y-%m-%d %H:%M:%S}Z", utc);
}

Json summary(const Manifest& manifest) {
  Json workers = Json::object();
  for (const auto& [rank, worker] : manifest.workers)
    workers[std::to_string(rank)] = {{"clock", worker.clock.value()},
                                     {"state_bytes", worker.state.size()}};
  return {{"checkpoint", manifest.id},
          {"created_unix_s", manifest.created_unix_s},
          {"tensors", manifest.tensors.size()},
          {"parameters", parameters(manifest)},
          {"servers", manifest.shard_digests.size()},
          {"bytes", manifest.bytes},
          {"workers", std::move(workers)}};
}

std::string clocks_text(const Manifest& manifest) {
  std::string text;
  for (const auto& [rank, worker] : manifest.workers)
    text += fmt::format("{}{}", text.empty() ? "" : ",", worker.clock.value());
  return text.empty() ? "-" : text;
}

Result<std::unique_ptr<CheckpointReader>> open(const CkptOptions& options) {
  return CheckpointReader::open(options.directory);
}

void print_inspection(const Manifest& manifest, const std::string& digest, std::ostream& out) {
  out << fmt::format(
      "checkpoint  {}\ncreated     {}\ndigest      {}\nservers     {}\n"
      "arrays      weights and {} of optimizer state\nbytes       {}\n",
      manifest.id, time_text(manifest.created_unix_s), digest, manifest.shard_digests.size(),
      manifest.state_arrays, manifest.bytes);
  out << "\nworker  clock  state bytes\n";
  for (const auto& [rank, worker] : manifest.workers)
    out << fmt::format("{:>6}  {:>5}  {:>11}\n", rank, worker.clock.value(), worker.state.size());
  std::size_t width = 6;
  for (const ManifestTensor& tensor : manifest.tensors) width = std::max(width, tensor.name.size());
  out << fmt::format("\n{:<{}}  {:>12}  shape\n", "tensor", width, "elements");
  for (const ManifestTensor& tensor : manifest.tensors)
    out << fmt::format("{:<{}}  {:>12}  {}\n", tensor.name, width,
                       element_count(tensor.shape).value_or(0), to_string(tensor.shape));
  out << "\nsettings\n";
  for (const auto& [name, value] : manifest.settings) out << fmt::format("{} = {}\n", name, value);
}

Json inspection(const Manifest& manifest, const std::string& digest) {
  Json json = summary(manifest);
  json["digest"] = digest;
  json["state_arrays"] = manifest.state_arrays;
  Json tensors = Json::array();
  for (const ManifestTensor& tensor : manifest.tensors)
    tensors.push_back({{"name", tensor.name}, {"shape", tensor.shape}});
  json["tensors"] = std::move(tensors);
  json["settings"] = manifest.settings;
  return json;
}

Status copy_tensors(const CheckpointReader& reader, const Manifest& manifest,
                    SafetensorsWriter& writer) {
  std::vector<float> buffer;
  for (std::uint32_t t = 0; t < manifest.tensors.size(); ++t) {
    const std::uint64_t elements = *element_count(manifest.tensors[t].shape);
    for (std::uint64_t at = 0; at < elements; at += buffer.size()) {
      buffer.resize(std::min(kExportElements, elements - at));
      if (Status got = reader.read(manifest, t, ArrayKind::kMaster, at, buffer); !got) return got;
      if (Status put = writer.add(buffer); !put) return put;
    }
  }
  return writer.finish();
}

}  // namespace

Status list_checkpoints(const CkptOptions& options, std::ostream& out) {
  const auto reader = open(options);
  if (!reader) return tl::unexpected(reader.error());
  const std::vector<Manifest>& manifests = (*reader)->manifests();
  if (options.json) {
    Json list = Json::array();
    for (const Manifest& manifest : manifests) list.push_back(summary(manifest));
    out << list.dump(2) << '\n';
    return {};
  }
  std::size_t width = 10;
  for (const Manifest& manifest : manifests) width = std::max(width, manifest.id.size());
  out << fmt::format("{:<{}}  {:<20}  {:>12}  {:>7}  {:>14}  clocks\n", "checkpoint", width,
                     "created", "parameters", "servers", "bytes");
  for (const Manifest& manifest : manifests)
    out << fmt::format("{:<{}}  {:<20}  {:>12}  {:>7}  {:>14}  {}\n", manifest.id, width,
                       time_text(manifest.created_unix_s), parameters(manifest),
                       manifest.shard_digests.size(), manifest.bytes, clocks_text(manifest));
  return {};
}

Status verify_checkpoints(const CkptOptions& options, std::ostream& out) {
  const auto reader = open(options);
  if (!reader) return tl::unexpected(reader.error());
  std::vector<Manifest> manifests = (*reader)->manifests();
  if (!options.checkpoint.empty() || manifests.empty()) {
    Result<Manifest> one = (*reader)->manifest(options.checkpoint);
    if (!one) return tl::unexpected(one.error());
    manifests = {std::move(*one)};
  }
  Status result;
  Json list = Json::array();
  for (const Manifest& manifest : manifests) {
    const Status verified = (*reader)->verify(manifest);
    if (options.json)
      list.push_back({{"checkpoint", manifest.id},
                      {"whole", verified.has_value()},
                      {"error", verified ? Json(nullptr) : Json(verified.error().message)}});
    else
      out << fmt::format("{}  {}\n", manifest.id, verified ? "whole" : "damaged");
    if (!verified && result) result = verified;
  }
  if (options.json) out << list.dump(2) << '\n';
  return result;
}

Status inspect_checkpoint(const CkptOptions& options, std::ostream& out) {
  const auto reader = open(options);
  if (!reader) return tl::unexpected(reader.error());
  const Result<Manifest> manifest = (*reader)->manifest(options.checkpoint);
  if (!manifest) return tl::unexpected(manifest.error());
  const Result<std::string> digest = (*reader)->digest(*manifest);
  if (!digest) return tl::unexpected(digest.error());
  if (options.json)
    out << (options.digest ? Json{{"checkpoint", manifest->id}, {"digest", *digest}}
                           : inspection(*manifest, *digest))
               .dump(2)
        << '\n';
  else if (options.digest)
    out << *digest << '\n';
  else
    print_inspection(*manifest, *digest, out);
  return {};
}

Status export_checkpoint(const CkptOptions& options, std::ostream& out) {
  const auto reader = open(options);
  if (!reader) return tl::unexpected(reader.error());
  const Result<Manifest> manifest = (*reader)->manifest(options.checkpoint);
  if (!manifest) return tl::unexpected(manifest.error());
  if (Status good = check_manifest(*manifest); !good) return good;
  std::vector<SafetensorsEntry> entries;
  for (const ManifestTensor& tensor : manifest->tensors)
    entries.push_back({tensor.name, tensor.shape});
  const auto writer = SafetensorsWriter::create(
      options.output, entries, {{"format", "pt"}, {"leeway_checkpoint", manifest->id}});
  if (!writer) return tl::unexpected(writer.error());
  if (Status copied = copy_tensors(**reader, *manifest, **writer); !copied) return copied;
  if (options.json)
    out << Json{{"checkpoint", manifest->id},
                {"file", options.output},
                {"tensors", entries.size()},
                {"parameters", parameters(*manifest)}}
               .dump(2)
        << '\n';
  else
    out << fmt::format("{}: {} tensors, {} parameters of checkpoint '{}'\n", options.output,
                       entries.size(), parameters(*manifest), manifest->id);
  return {};
}

}  // namespace leeway::storage
