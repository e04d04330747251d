// The settings of a job. The scheduler owns them and hands every server and worker the same values,
// so nobody can train with another bound than the rest.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "common/codec.h"
#include "common/knobs.h"
#include "common/optimizer.h"
#include "common/tensor.h"

namespace leeway {

struct JobSettings {
  // Consistency (DESIGN: the staleness contract).
  Bound staleness{0};
  Choice update{"per_push", {"per_push", "per_clock"}};
  std::uint32_t quorum = 0;  // 0 = all
  Grace grace_ms;
  bool consistent = false;
  std::uint64_t local_steps = 1;
  Choice local_optimizer{"sgd", {"sgd", "momentum", "nesterov", "adam"}};
  double local_learning_rate = 0.01;
  double local_momentum = 0.9;

  // The servers' optimizer.
  Choice optimizer{"momentum", optimizer_names()};
  double learning_rate = 0.01;
  double momentum = 0.9;
  std::uint32_t momentum_period = 4;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  std::string weight_decay_skip;

  double clip_norm = 0.0;

  // The learning rate over the job (common/learning_rate.h).
  Choice schedule{"constant", {"constant", "step", "linear", "cosine"}};
  std::uint64_t schedule_steps = 0;
  double schedule_factor = 0.1;
  std::uint64_t warmup_steps = 0;

  // What staleness does to an update (server/update_rule.h).
  Choice staleness_rate{"off", {"off", "inverse"}};
  double staleness_decay = 0.0;
  std::uint32_t staleness_cutoff = 0;
  double delay_compensation = 0.0;

  // Numbers on the wire.
  Choice pull_dtype{"f16", {"f16", "bf16", "f32"}};
  Choice gradient_codec{"f16", {"f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "topk"}};
  double topk_fraction = 0.01;
  Choice checksum{"off", {"off", "crc32c"}};
  double loss_scale_initial = 1024.0;
  double loss_scale_min = 1.0;
  double loss_scale_max = 16777216.0;
  std::uint32_t loss_scale_growth_interval = 1000;

  std::uint64_t seed = 1;
  std::uint64_t partition_elements = 1u << 20;
  Bytes server_memory_limit{0};

  // Checkpoints.
  std::uint64_t checkpoint_every = 0;
  std::uint32_t checkpoint_keep = 3;

  // Deadlines.
  std::chrono::milliseconds heartbeat_interval_ms{200};
  std::chrono::milliseconds member_timeout_ms{5000};
  std::chrono::milliseconds start_timeout_ms{60000};
  std::uint32_t min_workers = 0;
  std::chrono::milliseconds rejoin_timeout_ms{600000};
  std::chrono::milliseconds transfer_timeout_ms{20000};

  // Binds every field above; the Knobs must not outlive this.
  void describe(Knobs& knobs);
  Dtype pull_type() const;
  Optimizer optimizer_type() const;
  Optimizer local_optimizer_type() const;
  // weight_decay applies to it, and lamb's trust ratio.
  bool decays(std::string_view tensor) const;
  GradientCodec gradients() const;
  bool per_clock() const { return update.value == "per_clock"; }

  // From what the scheduler sent: a name that is not known or a value that does not parse means
  // another version of Leeway.
  static Result<JobSettings> from_values(const std::map<std::string, std::string>& values);
  // Values that are each valid but do not go together.
  Status check() const;
  // Settings that need another number of members.
  Status check_members(std::uint32_t servers, std::uint32_t workers) const;
};

}  // namespace leeway
