#include "worker/data_plane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <utility>
#include <variant>

#include "common/half.h"
#include "common/log.h"
#include "transport/crc32c.h"
#include "worker/device_gradients.h"

namespace leeway::worker {

using transport::Access;
using transport::Ending;

namespace {

// How long the endpoint's thread may take to let go of the memory at the end; it never blocks, so
// this only bounds a fabric that hangs in a call.
constexpr milliseconds kCloseTimeout{2000};
// A payload of so many bytes is cheaper in the message than in a transfer of its own.
constexpr std::size_t kMostInline = 4096;

// Items [i, i + n) of `all` at a time.
template <typename T, typename Use>
void in_groups(const std::vector<T>& all, std::size_t n, Use use) {
  for (std::size_t i = 0; i < all.size(); i += n)
    use(std::span<const T>(all).subspan(i, std::min(n, all.size() - i)));
}

// At least one: a model of empty tensors has buffers, too.
std::size_t bytes_for(const std::vector<Place>& places) {
  return places.empty() ? 1 : std::max<std::size_t>(places.back().end(), 1);
}

}  // namespace

DataPlane::Wire::Wire(Config c)
    : config(std::move(c)),
      core({config.layout.shards(), config.staleness, config.consistent, config.clock}) {}

DataPlane::DataPlane(std::unique_ptr<transport::Endpoint> endpoint, Board& board)
    : endpoint_(std::move(endpoint)),
      board_(board),
      outbox_(info().max_message,
              [this](std::uint32_t to, const auto& frame) { send_frame(ServerId(to), frame); }) {
  endpoint_->start([this](std::span<const std::byte> frame) { on_frame(frame); });
}

DataPlane::~DataPlane() {
  // On the endpoint's thread, so that no handler runs while the memory goes.
  auto closed = std::make_shared<std::promise<void>>();
  auto done = closed->get_future();
  const bool posted = endpoint_->post([this, closed] {
    wire_.reset();
    initial_.reset();
    device_gradients_.reset();
    device_weights_.reset();
    gradients_ = {};
    weights_ = {};
    closed->set_value();
  });
  if (posted) done.wait_for(kCloseTimeout);
  endpoint_.reset();  // no task and no handler after this: the rest may go
}

Status DataPlane::allocate(const Layout& layout, Dtype pull_dtype, const GradientCodec& codec,
                           bool checksum) {
  // At least one element: a model of empty tensors has buffers, too.
  const std::size_t elements = std::max<std::size_t>(layout.elements(), 1);
  auto weights = endpoint_->allocate(elements * size_of(pull_dtype), Access::kPeers);
  if (!weights) return tl::unexpected(weights.error());
  auto places = payload_places(layout, codec);
  auto gradients = endpoint_->allocate(bytes_for(places), Access::kPeers);
  if (!gradients) return tl::unexpected(gradients.error());
  weights_ = std::move(*weights);
  gradients_ = std::move(*gradients);
  place_payloads(std::move(places), checksum);
  return {};
}

Status DataPlane::allocate_on(std::shared_ptr<transport::Gpu> gpu, transport::GpuPath path,
                              const Layout& layout, Dtype pull_dtype, const GradientCodec& codec,
                              bool checksum) {
  const std::size_t elements = std::max<std::size_t>(layout.elements(), 1);
  auto weights = transport::GpuBuffer::make(gpu, *endpoint_, elements * size_of(pull_dtype), path);
  if (!weights) return tl::unexpected(weights.error());
  auto places = payload_places(layout, codec);
  auto gradients = transport::GpuBuffer::make(gpu, *endpoint_, bytes_for(places), path);
  if (!gradients) return tl::unexpected(gradients.error());
  device_weights_.emplace(std::move(*weights));
  device_gradients_.emplace(std::move(*gradients));
  place_payloads(std::move(places), checksum);
  return {};
}

void DataPlane::place_payloads(std::vector<Place> places, bool checksum) {
  places_ = std::move(places);
  if (!gradient_memory().on_device())
    for (const Place& place : places_)
      payloads_.push_back(gradient_memory().bytes().subspan(place.offset, place.bytes));
  if (checksum) checksums_.resize(places_.size());
}

void DataPlane::note_checksums(std::span<const PartitionId> parts) {
  if (checksums_.empty()) return;
  for (const PartitionId p : parts) checksums_[p.value()] = transport::crc32c(payloads_[p.value()]);
}

std::optional<std::uint32_t> DataPlane::checksum_of(PartitionId part,
                                                    std::span<const std::byte> payload,
                                                    bool initial) const {
  if (checksums_.empty()) return std::nullopt;
  return initial ? transport::crc32c(payload) : checksums_[part.value()];
}

void DataPlane::connect(Config config) {
  endpoint_->post([this, config = std::move(config)]() mutable {
    auto wire = std::make_unique<Wire>(std::move(config));
    for (std::size_t s = 0; s < wire->config.servers.size(); ++s) {
      auto peer = endpoint_->connect(wire->config.servers[s].address);
      if (!peer) {
        board_.fail(fmt::format("cannot reach server.{} at {}: {}", s,
                                wire->config.servers[s].printable, peer.error().message),
                    false);
        return;
      }
      wire->peers.push_back(*peer);
    }
    wire_ = std::move(wire);
    carry_out(wire_->core.pull_first());
  });
}

Status DataPlane::push_initial(std::span<const float> values) {
  auto memory = endpoint_->allocate(std::max<std::size_t>(values.size_bytes(), sizeof(float)),
                                    Access::kPeers);
  if (!memory) return tl::unexpected(memory.error());
  std::memcpy(memory->bytes().data(), values.data(), values.size_bytes());
  {
    const std::lock_guard lock(board_.mutex);
    board_.initial_confirmed = false;
  }
  auto shared = std::make_shared<transport::RegisteredMemory>(std::move(*memory));
  endpoint_->post([this, shared] {
    if (!wire_) return;
    initial_ = std::make_unique<transport::RegisteredMemory>(std::move(*shared));
    std::vector<PartitionId> all;
    for (const auto& shard : wire_->config.layout.shards())
      all.insert(all.end(), shard.begin(), shard.end());
    carry_out(wire_->core.push(all, 1, true));
    carry_out(wire_->core.end(Ending::kInitial, 0, {}));
  });
  return {};
}

void DataPlane::push(std::vector<PartitionId> partitions, float scale) {
  note_checksums(partitions);
  endpoint_->post([this, partitions = std::move(partitions), scale] {
    if (wire_) carry_out(wire_->core.push(partitions, scale, false));
  });
}

void DataPlane::end_step(std::vector<PartitionId> rest, float scale, Ending ending,
                         std::uint32_t samples, std::vector<std::byte> state, float factor) {
  note_checksums(rest);
  endpoint_->post([this, rest = std::move(rest), scale, ending, samples, state = std::move(state),
                   factor]() mutable {
    if (!wire_) return;
    if (!rest.empty()) carry_out(wire_->core.push(rest, scale, false));
    carry_out(wire_->core.end(ending, samples, std::move(state), factor));
  });
}

void DataPlane::pull_final() {
  endpoint_->post([this] {
    if (wire_) carry_out(wire_->core.pull_final());
  });
}

void DataPlane::explain(std::string waiting) {
  endpoint_->post([this, waiting = std::move(waiting)] {
    const std::string why = wire_ ? wire_->core.waiting_for() : "";
    if (!why.empty()) log::warning("waits for {}: {}", waiting, why);
  });
}

void DataPlane::on_frame(std::span<const std::byte> frame) {
  in_frame_ = true;
  while (!frame.empty()) {
    const auto message = transport::decode_next(frame);
    if (message)
      on_message(*message);
    else
      stray(message.error().message);
  }
  in_frame_ = false;
  outbox_.flush();
}

void DataPlane::on_message(const transport::Message& message) {
  if (!wire_) return;  // answers to a session that is ending
  const transport::Sender& from = message.sender;
  const Config& config = wire_->config;
  if (from.job != config.self.job)
    return stray(fmt::format("it is of another job ({:x})", from.job));
  if (from.id >= config.servers.size() || from.incarnation != config.servers[from.id].incarnation)
    return stray(fmt::format("server.{} with incarnation {} is not part of the job", from.id,
                             from.incarnation.value()));
  receive(message);
}

void DataPlane::receive(const transport::Message& message) {
  const ServerId from(message.sender.id);
  StepCore& core = wire_->core;
  if (const auto* taken = std::get_if<transport::PushTaken>(&message.body))
    return carry_out(core.taken(from, *taken));
  if (const auto* committed = std::get_if<transport::Committed>(&message.body))
    return carry_out(core.committed(from, *committed));
  if (const auto* pulled = std::get_if<transport::Pulled>(&message.body))
    return carry_out(core.pulled(from, *pulled));
  if (const auto* refused = std::get_if<transport::Refused>(&message.body))
    return board_.fail(
        fmt::format("server.{} refused a message of this worker: {}", from.value(), refused->text),
        false);
  stray(fmt::format("server.{} sent what only workers send", from.value()));
}

// Anybody can send bytes to an open endpoint: said once, then at each power of two.
void DataPlane::stray(std::string why) {
  const std::uint64_t count = ++strays_;
  if ((count & (count - 1)) == 0) log::warning("ignored a message ({} so far): {}", count, why);
}

void DataPlane::carry_out(Result<Effects> effects) {
  if (!effects) return board_.fail(effects.error().message, false);
  for (const Effect& effect : *effects)
    std::visit([this](const auto& e) { carry_out_one(e); }, effect);
}

void DataPlane::carry_out_one(const SendPush& effect) {
  const transport::RegisteredMemory& memory = effect.initial ? *initial_ : gradient_memory();
  const Codec codec = effect.initial ? Codec::kF32 : wire_->config.codec.codec;
  std::uint64_t bytes = 0;
  const auto remote = memory.remote();
  const std::size_t most = transport::max_push_entries(info().max_message, remote->size());
  in_groups(effect.partitions, most, [&](auto group) {
    transport::Push push{.clock = effect.clock, .memory = remote};
    push.entries.reserve(group.size());
    std::size_t room = transport::inline_room(info().max_message, remote->size(), group.size());
    for (PartitionId p : group) {
      const Layout::Part& part = wire_->config.layout.parts()[p.value()];
      const Place place = effect.initial
                              ? Place{part.begin * sizeof(float), part.elements * sizeof(float)}
                              : places_[p.value()];
      const auto payload = memory.on_device() ? std::span<const std::byte>()
                                              : memory.bytes().subspan(place.offset, place.bytes);
      const bool inlined =
          !effect.initial && !memory.on_device() && place.bytes <= std::min(room, kMostInline);
      push.entries.push_back({.partition = p,
                              .scale = effect.scale,
                              .offset = place.offset,
                              .bytes = place.bytes,
                              .codec = codec,
                              .initial = effect.initial,
                              .inlined = inlined,
                              .checksum = checksum_of(p, payload, effect.initial)});
      bytes += place.bytes;
      if (!inlined) continue;
      push.payload.insert(push.payload.end(), payload.begin(), payload.end());
      room -= place.bytes;
    }
    send(effect.server, push);
  });
  const std::lock_guard lock(board_.mutex);
  board_.report.bytes_pushed += static_cast<std::int64_t>(bytes);
}

void DataPlane::carry_out_one(const SendEnding& effect) { send(effect.server, effect.commit); }

void DataPlane::carry_out_one(const SendPull& effect) {
  const std::size_t width = size_of(wire_->config.pull_dtype);
  transport::Pull pull{.clock = effect.clock,
                       .request = effect.request,
                       .staleness = effect.staleness,
                       .total = static_cast<std::uint32_t>(effect.partitions.size()),
                       .memory = weight_memory().remote()};
  // A server without a partition is asked all the same: its gate counts.
  if (effect.partitions.empty()) return send(effect.server, pull);
  const std::size_t most = transport::max_pull_entries(info().max_message, pull.memory->size());
  in_groups(effect.partitions, most, [&](auto group) {
    pull.entries.clear();
    for (const SendPull::Held& held : group)
      pull.entries.push_back(
          {.partition = held.partition,
           .have = held.have,
           .offset = wire_->config.layout.parts()[held.partition.value()].begin * width});
    send(effect.server, pull);
  });
}

void DataPlane::carry_out_one(const PayloadsTaken& effect) {
  const std::lock_guard lock(board_.mutex);
  board_.payloads_taken += effect.partitions;
  board_.changed.notify_all();
}

void DataPlane::carry_out_one(const EndingConfirmed& effect) {
  if (effect.ending == Ending::kInitial) initial_.reset();
  const std::lock_guard lock(board_.mutex);
  if (effect.ending == Ending::kInitial) {
    board_.initial_confirmed = true;
  } else {
    board_.confirmed = effect.clock.next();
  }
  board_.changed.notify_all();
}

void DataPlane::carry_out_one(const WeightsReady& effect) {
  if (device_weights_) {
    const std::size_t width = size_of(wire_->config.pull_dtype);
    const auto ranges = ranges_of(wire_->config.layout, effect.changed, width);
    if (auto s = device_weights_->take_in(ranges); !s) return board_.fail(s.error().message, false);
  }
  std::uint64_t bytes = 0;
  for (PartitionId p : effect.changed)
    bytes += wire_->config.layout.parts()[p.value()].elements * size_of(wire_->config.pull_dtype);
  if (effect.violation)
    log::error(
        "weights for step {} are {} clocks stale, which exceeds the bound: this is a bug "
        "worth reporting",
        effect.clock.value(), effect.staleness);
  const std::lock_guard lock(board_.mutex);
  rpc::WorkerReport& report = board_.report;
  report.bytes_pulled += static_cast<std::int64_t>(bytes);
  report.staleness_violations += effect.violation ? 1 : 0;
  if (!effect.changed.empty() || board_.versions.empty()) board_.versions = wire_->core.versions();
  board_.staleness = effect.by_server;
  board_.bound = effect.bound;
  if (effect.final) {
    board_.final_weights = true;
  } else {
    board_.weights = effect.clock;
    const std::size_t bucket = std::min<std::size_t>(effect.staleness, kStalenessBuckets - 1);
    auto& histogram = report.staleness_histogram;
    if (histogram.size() <= bucket) histogram.resize(bucket + 1);
    ++histogram[bucket];
  }
  board_.changed.notify_all();
}

void DataPlane::send(ServerId server, const transport::Body& body) {
  if (outbox_.add(server.value(), transport::encode(wire_->config.self, body)) && !in_frame_)
    endpoint_->post([this] { outbox_.flush(); });
}

void DataPlane::send_frame(ServerId server, const transport::Outbox::Frame& frame) {
  if (!wire_) return;
  const Config& config = wire_->config;
  endpoint_->send(wire_->peers[server.value()], frame,
                  MonotonicClock::now() + config.transfer_timeout,
                  [this, server, patience = config.patience](const transport::Outcome& outcome) {
                    if (outcome.status || outcome.status.error().code == Code::kCancelled) return;
                    board_.suspect(fmt::format("cannot reach server.{}: {}", server.value(),
                                               outcome.status.error().message),
                                   patience);
                  });
}

}  // namespace leeway::worker
