// How an engine comes to be: memory, restored values, the core with what the plan says.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/log.h"
#include "kernels/cast.h"
#include "server/engine.h"
#include "server/engine_parts.h"

namespace leeway::server {
namespace {

// The largest clock of any step that the restored weights hold.
Clock clock_of(const EngineConfig& config) {
  std::uint64_t steps = 1;
  for (const auto& [id, worker] : config.workers) steps = std::max(steps, worker.clock.value());
  return Clock(steps - 1);
}

std::uint32_t places_of(const EngineConfig& config) {
  return std::max(config.places, static_cast<std::uint32_t>(config.workers.size()));
}

SlabRule rule_of(const EngineConfig& config) {
  return {.per_clock = config.settings.per_clock(),
          .staleness = config.settings.staleness,
          .workers = places_of(config),
          .servers = config.servers,
          .memory_limit = config.settings.server_memory_limit.value};
}

bool whole_tensor(const EngineConfig& config, const EngineConfig::Partition& partition) {
  return partition.elements == element_count(config.tensors[partition.tensor].shape);
}

std::vector<transport::Bundle> bundles_of(const EngineConfig& config) {
  std::vector<transport::BundlePiece> pieces;
  for (const EngineConfig::Partition& partition : config.partitions)
    pieces.push_back({.id = partition.id,
                      .elements = partition.elements,
                      .whole_tensor = whole_tensor(config, partition),
                      .decays = config.settings.decays(config.tensors[partition.tensor].name)});
  return transport::make_bundles(pieces);
}

ShardLayout layout_of(const EngineConfig& config, const std::vector<transport::Bundle>& bundles) {
  if (auto fits = config.settings.check_members(config.servers,
                                                static_cast<std::uint32_t>(config.workers.size()));
      !fits)
    throw ConfigError(fits.error().message);
  ShardShape shape{.state_arrays = state_arrays(config.settings.optimizer_type()),
                   .pull_dtype = config.settings.pull_type(),
                   .codec = config.settings.gradients(),
                   .late_sum = config.settings.quorum != 0};
  if (config.settings.delay_compensation != 0) shape.remembered = places_of(config);
  for (const transport::Bundle& bundle : bundles) {
    shape.elements.push_back(bundle.elements);
    shape.decays.push_back(bundle.decays);
    if (config.settings.optimizer_type() != Optimizer::kLamb) continue;
    auto& tensors = shape.tensors.emplace_back();
    for (const transport::Bundle::Member& member : bundle.members)
      if (const auto& piece = config.partitions[member.piece]; whole_tensor(config, piece))
        tensors.push_back({member.offset, member.offset + piece.elements});
  }
  return value_or_throw(lay_out(shape, rule_of(config)));
}

// A block of no bytes is still a block, so that an empty shard needs no cases of its own.
std::size_t at_least_one(std::size_t bytes) { return std::max<std::size_t>(bytes, 1); }

// Which no fabric touches.
Result<transport::HostMemory> own_memory(std::size_t bytes) {
  return transport::HostMemory::make(at_least_one(bytes), transport::HostMemory::Kind::kPrivate);
}

transport::RegisteredMemory allocate(transport::Endpoint& endpoint, std::size_t bytes,
                                     transport::Access access) {
  return value_or_throw(endpoint.allocate(at_least_one(bytes), access));
}

}  // namespace

Engine::Engine(std::unique_ptr<transport::Endpoint> endpoint, EngineConfig config)
    : config_(std::move(config)),
      bundles_(bundles_of(config_)),
      layout_(layout_of(config_, bundles_)),
      rule_(config_.settings, clock_of(config_)),
      masters_(allocate(*endpoint, layout_.master_bytes(), transport::Access::kOwn)),
      published_(allocate(*endpoint, layout_.published_bytes(), transport::Access::kOwn)),
      slabs_(allocate(*endpoint, layout_.slab_bytes(), transport::Access::kOwn)),
      state_(value_or_throw(own_memory(layout_.state_bytes()))),
      then_(value_or_throw(own_memory(layout_.then_bytes()))),
      shard_(std::make_unique<Shard>(
          layout_, ShardBlocks{masters_.bytes(), state_.bytes(), published_.bytes(), slabs_.bytes(),
                               then_.bytes()})),
      core_(make_core()),
      outbox_(endpoint->info().max_message,
              [this](std::uint32_t to, const auto& frame) { send_frame(WorkerId(to), frame); }),
      reads_(kTransfersInFlight, kBytesInFlight),
      writes_(kTransfersInFlight, kBytesInFlight),
      order_(bundles_.size()),
      pool_(config_.threads),
      endpoint_(std::move(endpoint)) {
  std::iota(order_.begin(), order_.end(), LocalPartition{0});
  if (!config_.restore.empty()) restore();
  if (!config_.checkpoint_dir.empty()) open_checkpoints();
  for (const EngineConfig::Partition& partition : config_.partitions)
    report_.elements += partition.elements;
  log::info("shard of {} partitions, {} elements: {}", config_.partitions.size(), report_.elements,
            layout_.sum());
  report_.memory_bytes = layout_.total_bytes();
  endpoint_->start([this](std::span<const std::byte> frame) { on_frame(frame); });
  endpoint_->post([this] {
    meet_servers();
    watch_waiting();
  });
}

// Those that this server has to send norms to.
void Engine::meet_servers() {
  for (const NormConfig::Tensor& tensor : core_->norm_config().tensors)
    for (const ServerId other : tensor.others) {
      if (servers_.contains(other)) continue;
      if (const auto peer = endpoint_->connect(config_.others.at(other).address))
        servers_.emplace(other, *peer);
      else
        report_.fault =
            fmt::format("cannot reach server.{}: {}", other.value(), peer.error().message);
    }
}

// What lamb needs to know of tensors that do not lie whole in one partition.
NormConfig Engine::share_norms() const {
  NormConfig norms;
  norms.patience = config_.norm_patience;
  std::map<std::uint32_t, std::size_t> index;
  for (LocalPartition b = 0; b < bundles_.size(); ++b) {
    if (!layout_.part_of_tensor(b)) continue;
    const std::uint32_t tensor = config_.partitions[bundles_[b].members[0].piece].tensor;
    const auto [at, added] = index.try_emplace(tensor, norms.tensors.size());
    if (added)
      norms.tensors.push_back(
          {TensorId(tensor), config_.tensors[tensor].name, {}, config_.tensors[tensor].others});
    norms.tensors[at->second].parts.push_back(b);
    for (const ServerId other : config_.tensors[tensor].others)
      norms.servers.emplace(other, config_.others.at(other).incarnation);
  }
  return norms;
}

void Engine::open_checkpoints() {
  std::vector<CheckpointPart> parts(config_.partitions.size());
  for (LocalPartition b = 0; b < bundles_.size(); ++b)
    for (const transport::Bundle::Member& member : bundles_[b].members)
      parts[member.piece] = {.id = config_.partitions[member.piece].id,
                             .bundle = b,
                             .offset = member.offset,
                             .elements = config_.partitions[member.piece].elements,
                             .shared = bundles_[b].members.size() > 1};
  writer_ = std::make_unique<CheckpointWriter>(
      config_.checkpoint_dir, config_.server, std::move(parts),
      CheckpointWriter::Callbacks{
          .released = [this] { endpoint_->post([this] { continue_update(); }); },
          .done =
              [this](const std::string& id, Result<WrittenShard> written) {
                endpoint_->post([this, id, written = std::move(written)] {
                  if (written) {
                    report_.durable = *written;
                    log::info("checkpoint {} is on disk: {:.1f} MB", id,
                              static_cast<double>(written->bytes) / 1e6);
                  } else {
                    report_.checkpoint_error = written.error().message;
                    log::warning("checkpoint {} could not be written: {}", id,
                                 written.error().message);
                  }
                  snapshot_.reset();
                  continue_update();
                });
              }});
}

Engine::~Engine() {
  // No new task, then no task, then no completion; the memory goes last.
  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  const bool posted = endpoint_->post([&] {
    stopping_ = true;
    const std::lock_guard lock(mutex);
    stopped = true;
    changed.notify_all();
  });
  if (posted) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return stopped; });
  }
  pool_.wait();
  writer_.reset();
  // The endpoint is the first member to go. Not by reset(): tasks that it still runs use it.
}

std::unique_ptr<Consistency> Engine::make_core() const {
  CoreConfig core{.job = config_.job,
                  .per_clock = config_.settings.per_clock(),
                  .quorum = config_.settings.quorum,
                  .grace = config_.settings.grace_ms,
                  .staleness = config_.settings.staleness,
                  .codec = config_.settings.gradients(),
                  .slabs = layout_.slabs(),
                  .minimal_slabs = rule_of(config_).minimum(),
                  .only_server = config_.servers == 1,
                  .initialized = !config_.restore.empty(),
                  .workers = config_.workers,
                  .norms = share_norms()};
  for (const transport::Bundle& bundle : bundles_)
    core.partitions.push_back({bundle.id, bundle.elements});
  return std::make_unique<Consistency>(std::move(core));
}

void Engine::restore_partition(const storage::CheckpointReader& reader,
                               const storage::Manifest& manifest,
                               const EngineConfig::Partition& partition, LocalPartition bundle,
                               std::uint64_t offset) {
  const EngineConfig::Tensor& tensor = config_.tensors[partition.tensor];
  const auto saved =
      std::ranges::find(manifest.tensors, tensor.name, &storage::ManifestTensor::name);
  if (saved == manifest.tensors.end() || saved->shape != tensor.shape)
    throw ConfigError(
        fmt::format("checkpoint {} has no tensor '{}' of shape {}: it is of another "
                    "model; use --resume never",
                    manifest.id, tensor.name, to_string(tensor.shape)));
  const auto index = static_cast<std::uint32_t>(saved - manifest.tensors.begin());
  value_or_throw(reader.read(manifest, index, storage::ArrayKind::kMaster, partition.begin,
                             shard_->master(bundle).subspan(offset, partition.elements)));
  for (int array = 0; array < shard_->state_arrays(); ++array) {
    if (static_cast<std::uint32_t>(array) >= manifest.state_arrays)
      throw ConfigError(
          fmt::format("checkpoint {} has {} state arrays, optimizer {} needs {}: "
                      "resume with the optimizer it was made with",
                      manifest.id, manifest.state_arrays, config_.settings.optimizer.value,
                      shard_->state_arrays()));
    value_or_throw(reader.read(manifest, index, static_cast<storage::ArrayKind>(array + 1),
                               partition.begin,
                               shard_->state(bundle, array).subspan(offset, partition.elements)));
  }
}

void Engine::restore() {
  const auto reader = value_or_throw(storage::CheckpointReader::open(config_.checkpoint_dir));
  const storage::Manifest manifest = value_or_throw(reader->manifest(config_.restore));
  for (LocalPartition b = 0; b < bundles_.size(); ++b) {
    for (const transport::Bundle::Member& member : bundles_[b].members)
      restore_partition(*reader, manifest, config_.partitions[member.piece], b, member.offset);
    // The copy that end_update() would make current.
    shard_->begin_update(b);
    shard_->publish_partition(b);
    shard_->set_version(b, Version(manifest.updates));
    shard_->end_update(b);
  }
  log::info("restored checkpoint {}: {} updates", manifest.id, manifest.updates);
}

}  // namespace leeway::server
