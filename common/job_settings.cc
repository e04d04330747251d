#include "common/job_settings.h"

#include <fmt/format.h>

#include <cmath>
#include <stdexcept>

#include "common/name_patterns.h"

namespace leeway {

void JobSettings::describe(Knobs& k) {
  k.add("staleness", staleness, "clocks",
        "how many steps a worker may run ahead of what it has seen");
  k.add("update", update, "apply each step as it comes, or average the steps of one clock");
  k.add("quorum", quorum, "workers; 0 = all",
        "per_clock: a clock is applied when so many have committed it; late steps join the next");
  k.add("grace_ms", grace_ms,
        "how long a clock waits for more than its quorum; auto = while it is worth it");
  k.add("consistent", consistent, "every pull is of one cut; what cannot promise that is refused");
  k.add("local_steps", local_steps, "steps",
        "more than 1: a worker takes so many of its own, then pushes how its weights changed");
  k.add("local_optimizer", local_optimizer, "the rule of local steps; its state starts each round");
  k.add("local_learning_rate", local_learning_rate, "per local step", "step size of local steps");
  k.add("local_momentum", local_momentum, "0..1", "local momentum, nesterov: what stays of it");
  k.add("optimizer", optimizer, "the servers' update rule");
  k.add("learning_rate", learning_rate, "per update", "step size of the optimizer");
  k.add("momentum", momentum, "0..1", "momentum, nesterov, delayed_nesterov: what stays of it");
  k.add("momentum_period", momentum_period, "updates",
        "delayed_nesterov: the momentum takes part in each so-many-th update");
  k.add("beta1", beta1, "0..1", "adam, adamw: decay of the first moment");
  k.add("beta2", beta2, "0..1", "adam, adamw: decay of the second moment");
  k.add("epsilon", epsilon, "a small number",
        "adam, adamw, adagrad: added to the root of the second moment");
  k.add("weight_decay", weight_decay, "per update",
        "L2 penalty added to the gradient; adamw: taken off the weights, times the learning rate");
  k.add("weight_decay_skip", weight_decay_skip, "names",
        "tensors without weight decay, with wildcards: *.bias,*norm*");
  k.add("clip_norm", clip_norm, "a norm",
        "a worker's gradient with a larger norm, over all tensors, is scaled down to it; 0 = off");
  k.add("schedule", schedule, "how the learning rate falls over the job");
  k.add("schedule_steps", schedule_steps, "steps",
        "step: between two falls; linear, cosine: where the fall ends");
  k.add("schedule_factor", schedule_factor, "0..1",
        "step: of each fall; linear, cosine: what of the learning rate is left at the end");
  k.add("warmup_steps", warmup_steps, "steps",
        "in which the learning rate climbs in equal parts at the start; 0 = none");
  k.add("staleness_rate", staleness_rate, "inverse: a gradient of staleness t at 1 / (1 + t)");
  k.add("staleness_decay", staleness_decay, "per update",
        "a gradient of staleness t counts exp(-this * t) times; 0 = off");
  k.add("staleness_cutoff", staleness_cutoff, "updates",
        "a gradient fades along half a cosine until it counts nothing at this staleness; 0 = off");
  k.add("delay_compensation", delay_compensation, "a small number",
        "adds this * g * g * (change of the weights since the pull) to g; costs a copy of the "
        "weights for each worker; 0 = off");
  k.add("pull_dtype", pull_dtype, "how weights travel to the workers");
  k.add("gradient_codec", gradient_codec, "how gradients travel to the servers");
  k.add("topk_fraction", topk_fraction, "0..1",
        "topk: of the elements of a partition, how many travel in a step");
  k.add("checksum", checksum, "of pushed payloads: servers verify what they read");
  k.add("loss_scale_initial", loss_scale_initial, "a power of two",
        "the loss is multiplied by this so that FP16 gradients do not vanish");
  k.add("loss_scale_min", loss_scale_min, "a power of two", "below it a worker stops the job");
  k.add("loss_scale_max", loss_scale_max, "a power of two", "the scale never grows above it");
  k.add("loss_scale_growth_interval", loss_scale_growth_interval, "steps",
        "finite steps in a row after which the scale doubles");
  k.add("seed", seed, "a number", "of every random choice: initial weights, order of the data");
  k.add("partition_elements", partition_elements, "elements",
        "unit of placement and update; 1048576 elements are 4 MiB of FP32");
  k.add("server_memory_limit", server_memory_limit,
        "most memory a server takes for weights, optimizer and gradients; 0 = no limit");
  k.add("checkpoint_every", checkpoint_every, "steps",
        "clocks between checkpoints; 0 = only at the end and on a graceful stop");
  k.add("checkpoint_keep", checkpoint_keep, "checkpoints", "older ones are deleted");
  k.add("heartbeat_interval_ms", heartbeat_interval_ms, "how often a member reports");
  k.add("member_timeout_ms", member_timeout_ms, "a member silent for so long is dead");
  k.add("start_timeout_ms", start_timeout_ms, "everybody must have registered by then");
  k.add("min_workers", min_workers, "workers",
        "with fewer left training waits for others to join; 0 = it goes on, and fails without any");
  k.add("rejoin_timeout_ms", rejoin_timeout_ms, "how long min_workers waits for them");
  k.add("transfer_timeout_ms", transfer_timeout_ms, "deadline of one transfer on the fabric");
}

Dtype JobSettings::pull_type() const { return *parse_dtype(pull_dtype.value); }

namespace {

Optimizer optimizer_named(const Choice& choice) {
  for (const OptimizerKind& kind : kOptimizerKinds)
    if (kind.name == choice.value) return kind.optimizer;
  throw std::logic_error("a Choice holds one of its words");
}

}  // namespace

Optimizer JobSettings::optimizer_type() const { return optimizer_named(optimizer); }

Optimizer JobSettings::local_optimizer_type() const { return optimizer_named(local_optimizer); }

bool JobSettings::decays(std::string_view tensor) const {
  return (weight_decay != 0 || optimizer_type() == Optimizer::kLamb) &&
         !matches_any(weight_decay_skip, tensor);
}

GradientCodec JobSettings::gradients() const {
  GradientCodec codec;
  for (const NamedCodec& known : kGradientCodecs)
    if (known.name == gradient_codec.value) codec.codec = known.codec;
  codec.fraction = topk_fraction;
  return codec;
}

Result<JobSettings> JobSettings::from_values(const std::map<std::string, std::string>& values) {
  JobSettings settings;
  Knobs knobs;
  settings.describe(knobs);
  for (const auto& [name, text] : values)
    if (auto status = knobs.set(name, text, "job settings"); !status)
      return tl::unexpected(status.error());
  return settings;
}

Status JobSettings::check() const {
  const auto bad = [](std::string why) { return fail(Code::kInvalidArgument, std::move(why)); };
  const auto power_of_two = [](double x) {
    int e = 0;
    return x > 0 && std::frexp(x, &e) == 0.5;
  };
  if (quorum != 0 && !per_clock())
    return bad(
        fmt::format("quorum = {} needs update = per_clock: with {} no step waits for another",
                    quorum, update.value));
  if ((grace_ms.automatic || grace_ms.wait.count() != 0) && quorum == 0)
    return bad(
        "grace_ms needs a quorum (quorum = 1 or more): without one a clock waits for every worker");
  if (optimizer_type() == Optimizer::kLamb && (!per_clock() || quorum != 0))
    return bad(
        fmt::format("optimizer = lamb needs update = per_clock and no quorum, so that all servers "
                    "take the norms "
                    "of a tensor at the same clock, with the same steps in it: set {}",
                    per_clock() ? "quorum = 0" : "update = per_clock"));
  if (local_steps == 0) return bad("local_steps must be at least 1");
  if (local_steps > 1 && gradients().codec == Codec::kTopK)
    return bad(
        fmt::format("local_steps = {} does not go with gradient_codec = topk, which is for "
                    "gradients of single steps: use local_steps = 1, or another codec",
                    local_steps));
  if (local_learning_rate <= 0)
    return bad(fmt::format("local_learning_rate = {} is not positive", local_learning_rate));
  if (local_momentum < 0 || local_momentum >= 1)
    return bad(fmt::format("local_momentum = {} is not in [0, 1)", local_momentum));
  if (learning_rate < 0) return bad(fmt::format("learning_rate = {} is negative", learning_rate));
  if (momentum < 0 || momentum >= 1)
    return bad(fmt::format("momentum = {} is not in [0, 1)", momentum));
  if (momentum_period == 0) return bad("momentum_period must be at least 1");
  if (beta1 < 0 || beta1 >= 1) return bad(fmt::format("beta1 = {} is not in [0, 1)", beta1));
  if (beta2 < 0 || beta2 >= 1) return bad(fmt::format("beta2 = {} is not in [0, 1)", beta2));
  if (epsilon <= 0) return bad(fmt::format("epsilon = {} is not positive", epsilon));
  if (!(topk_fraction > 0 && topk_fraction <= 1))
    return bad(fmt::format("topk_fraction = {} is not in (0, 1]", topk_fraction));
  if (weight_decay < 0) return bad(fmt::format("weight_decay = {} is negative", weight_decay));
  if (clip_norm < 0) return bad(fmt::format("clip_norm = {} is negative", clip_norm));
  if (schedule_factor < 0 || schedule_factor > 1)
    return bad(fmt::format("schedule_factor = {} is not in [0, 1]", schedule_factor));
  if (schedule.value == "step" && schedule_steps == 0)
    return bad("schedule = step needs schedule_steps: after how many steps it falls");
  if ((schedule.value == "linear" || schedule.value == "cosine") && schedule_steps <= warmup_steps)
    return bad(
        fmt::format("schedule = {} ends at schedule_steps = {}, which must lie behind "
                    "warmup_steps = {}",
                    schedule.value, schedule_steps, warmup_steps));
  if (staleness_decay < 0)
    return bad(fmt::format("staleness_decay = {} is negative", staleness_decay));
  if (delay_compensation < 0)
    return bad(fmt::format("delay_compensation = {} is negative", delay_compensation));
  if (delay_compensation != 0 && per_clock())
    return bad(
        "delay_compensation needs update = per_push: it keeps the weights of each worker's last "
        "pull alone");
  if (!power_of_two(loss_scale_min) || !power_of_two(loss_scale_max) ||
      !power_of_two(loss_scale_initial))
    return bad("loss_scale_initial, loss_scale_min and loss_scale_max must be powers of two");
  if (loss_scale_min > loss_scale_initial || loss_scale_initial > loss_scale_max)
    return bad(
        fmt::format("loss_scale_initial = {} is outside [loss_scale_min = {}, "
                    "loss_scale_max = {}]",
                    loss_scale_initial, loss_scale_min, loss_scale_max));
  if (loss_scale_growth_interval == 0) return bad("loss_scale_growth_interval must be at least 1");
  if (partition_elements == 0 || partition_elements > (1ull << 28))
    return bad("partition_elements must be between 1 and 268435456");
  if (heartbeat_interval_ms.count() < 10) return bad("heartbeat_interval_ms must be at least 10");
  if (member_timeout_ms < 3 * heartbeat_interval_ms)
    return bad("member_timeout_ms must be at least three heartbeat_interval_ms");
  return {};
}

Status JobSettings::check_members(std::uint32_t servers, std::uint32_t workers) const {
  if (quorum > workers)
    return fail(
        Code::kInvalidArgument,
        fmt::format("quorum = {} is more than the job's {} workers: at most all of them can be "
                    "waited for",
                    quorum, workers));
  if (min_workers > workers)
    return fail(
        Code::kInvalidArgument,
        fmt::format("min_workers = {} is more than the job's {} workers", min_workers, workers));
  if (consistent && servers > 1 && (!per_clock() || staleness != Bound{0} || quorum != 0))
    return fail(
        Code::kInvalidArgument,
        fmt::format("consistent = true on {} servers needs update = per_clock, staleness = 0 "
                    "and no quorum: else each server is at a clock of its own; or use one "
                    "server",
                    servers));
  return {};
}

}  // namespace leeway
