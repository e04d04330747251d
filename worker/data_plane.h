// The fabric half of a session: the endpoint, the registered buffers that servers read and write,
// and the thread that carries out what the step core decides.
//
// Called from the program's thread; the work is posted to the endpoint's thread, which alone
// touches the core, the peers and the board's data-plane fields. The board outlives it. After the
// destructor no server reaches this process's memory any more.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/knobs.h"
#include "common/monotonic.h"
#include "common/tensor.h"
#include "transport/endpoint.h"
#include "transport/gpu_buffer.h"
#include "transport/messages.h"
#include "transport/outbox.h"
#include "worker/board.h"
#include "worker/layout.h"
#include "worker/step_core.h"

namespace leeway::worker {

class DataPlane {
 public:
  struct Server {
    Incarnation incarnation;
    std::vector<std::byte> address;
    std::string printable;
  };
  struct Config {
    transport::Sender self;
    std::vector<Server> servers;
    Layout layout;
    Dtype pull_dtype = Dtype::kF16;
    GradientCodec codec;
    Bound staleness;
    bool consistent = false;
    Clock clock;
    milliseconds transfer_timeout{20000};
    milliseconds patience{5000};  // with a silent server, before it is taken for dead
  };

  DataPlane(std::unique_ptr<transport::Endpoint> endpoint, Board& board);
  ~DataPlane();

  const transport::EndpointInfo& info() const noexcept { return endpoint_->info(); }

  // The weights, flat as in the layout, and the gradients, a payload a part. kResourceExhausted
  // says bytes, limit and remedy. `checksum`: every payload goes with its CRC32C.
  Status allocate(const Layout& layout, Dtype pull_dtype, const GradientCodec& codec,
                  bool checksum);
  // The same in the memory of a GPU; `path` says how they reach the servers.
  Status allocate_on(std::shared_ptr<transport::Gpu> gpu, transport::GpuPath path,
                     const Layout& layout, Dtype pull_dtype, const GradientCodec& codec,
                     bool checksum);
  // After allocate().
  std::span<const std::byte> weights() const noexcept { return weights_.bytes(); }
  // While no pull is on its way.
  std::span<std::byte> own_weights() noexcept { return weights_.bytes(); }
  // Where the encoded gradient of each part goes.
  std::span<const std::span<std::byte>> payloads() const noexcept { return payloads_; }

  // After allocate_on(). New weights are on their way to the device when the board says that they
  // are here; Gpu::before_program() waits for them.
  const std::byte* device_weights() const noexcept { return device_weights_->device(); }
  transport::GpuBuffer& device_gradients() noexcept { return *device_gradients_; }

  // Reaches the servers and asks for the first weights. After allocate(), once.
  void connect(Config config);
  // Sends initial values, FP32 and flat as in the layout, and their end.
  Status push_initial(std::span<const float> values);
  // Any thread, one step's calls one after another.
  void push(std::vector<PartitionId> partitions, float scale);
  // Pushes the rest of the step and ends it.
  void end_step(std::vector<PartitionId> rest, float scale, transport::Ending ending,
                std::uint32_t samples, std::vector<std::byte> state, float factor = 1);
  void pull_final();
  // Logs what keeps `waiting` from coming.
  void explain(std::string waiting);

 private:
  // What the endpoint's thread alone touches once connect() was posted.
  struct Wire {
    explicit Wire(Config c);
    Config config;
    StepCore core;
    std::vector<transport::Peer> peers;  // by server
  };

  void on_frame(std::span<const std::byte> frame);
  void on_message(const transport::Message& message);
  void receive(const transport::Message& message);
  void carry_out(Result<Effects> effects);
  const transport::RegisteredMemory& weight_memory() const noexcept {
    return device_weights_ ? device_weights_->memory() : weights_;
  }
  const transport::RegisteredMemory& gradient_memory() const noexcept {
    return device_gradients_ ? device_gradients_->memory() : gradients_;
  }
  // Finds the payloads in the memory that was just allocated.
  void place_payloads(std::vector<Place> places, bool checksum);
  // Of the thread that pushes; these gradients have just been written.
  void note_checksums(std::span<const PartitionId> parts);
  std::optional<std::uint32_t> checksum_of(PartitionId part, std::span<const std::byte> payload,
                                           bool initial) const;
  void carry_out_one(const SendPush& effect);
  void carry_out_one(const SendEnding& effect);
  void carry_out_one(const SendPull& effect);
  void carry_out_one(const PayloadsTaken& effect);
  void carry_out_one(const EndingConfirmed& effect);
  void carry_out_one(const WeightsReady& effect);
  void send(ServerId server, const transport::Body& body);
  void send_frame(ServerId server, const transport::Outbox::Frame& frame);
  void stray(std::string why);

  // Memory goes before the endpoint that registered it.
  std::unique_ptr<transport::Endpoint> endpoint_;
  Board& board_;
  transport::RegisteredMemory weights_;
  transport::RegisteredMemory gradients_;
  std::optional<transport::GpuBuffer> device_weights_, device_gradients_;  // in their place
  // By part; empty without checksums. Guarded as the gradients are: by the order of steps.
  std::vector<std::uint32_t> checksums_;
  std::vector<Place> places_;                   // by part, in the memory of the gradients
  std::vector<std::span<std::byte>> payloads_;  // the same, unless the CPU cannot reach it
  std::unique_ptr<transport::RegisteredMemory> initial_;  // until every server has taken it
  std::unique_ptr<Wire> wire_;
  transport::Outbox outbox_;
  bool in_frame_ = false;     // its end flushes
  std::uint64_t strays_ = 0;  // messages that were ignored
};

}  // namespace leeway::worker
