#include "scheduler/model_core.h"

#include <fmt/format.h>

#include <algorithm>

#include "scheduler/one_line.h"
#include "scheduler/placement.h"

namespace leeway::scheduler {
namespace {

// The first difference between two models in name order, told as "<left> ..., <right> ...".
std::optional<std::string> difference(const std::vector<rpc::TensorSpec>& left,
                                      std::string_view left_name,
                                      const std::vector<rpc::TensorSpec>& right,
                                      std::string_view right_name) {
  const auto only = [](const rpc::TensorSpec& tensor, std::string_view has,
                       std::string_view lacks) {
    return fmt::format("tensor '{}' {} is in {} and not in {}", tensor.name.substr(0, 80),
                       to_string(tensor.shape), has, lacks);
  };
  std::size_t l = 0, r = 0;
  while (l < left.size() || r < right.size()) {
    if (r == right.size() || (l < left.size() && left[l].name < right[r].name))
      return only(left[l], left_name, right_name);
    if (l == left.size() || right[r].name < left[l].name)
      return only(right[r], right_name, left_name);
    if (left[l].shape != right[r].shape)
      return fmt::format("tensor '{}' has shape {} in {} and {} in {}", left[l].name.substr(0, 80),
                         to_string(left[l].shape), left_name, to_string(right[r].shape),
                         right_name);
    ++l, ++r;
  }
  return std::nullopt;
}

std::string value_or_none(const SettingValues& values, const std::string& key) {
  const auto it = values.find(key);
  return it == values.end() ? "no value" : fmt::format("'{}'", one_line(it->second));
}

}  // namespace

Result<JobSettings> effective_settings(const SettingValues& program, const SettingValues& person) {
  JobSettings settings;
  Knobs knobs;
  settings.describe(knobs);
  for (const auto& [layer, source] :
       {std::pair(&program, "the program"), std::pair(&person, "the job")})
    for (const auto& [name, text] : *layer)
      if (auto status = knobs.set(one_line(name), one_line(text), source); !status)
        return tl::unexpected(std::move(status.error()));
  if (auto status = settings.check(); !status) return tl::unexpected(std::move(status.error()));
  return settings;
}

SettingValues values_of(JobSettings settings) {
  Knobs knobs;
  settings.describe(knobs);
  return knobs.values();
}

std::uint32_t state_arrays(const JobSettings& settings) {
  return static_cast<std::uint32_t>(leeway::state_arrays(settings.optimizer_type()));
}

ModelCore::ModelCore(SettingValues person, std::optional<storage::Manifest> restore)
    : person_(std::move(person)),
      restore_(std::move(restore)),
      settings_(value_or_throw(effective_settings({}, person_))) {}

Status ModelCore::declare(std::int32_t worker, const rpc::Model& model) {
  auto tensors = check_model(model.tensors);
  if (!tensors)
    return fail(tensors.error().code,
                fmt::format("worker {}: {}", worker, tensors.error().message));
  auto settings = effective_settings(model.settings, person_);
  if (!settings)
    return fail(settings.error().code,
                fmt::format("worker {}: {}", worker, settings.error().message));
  if (auto status = same_as_first(worker, *tensors, model.settings); !status) return status;
  if (auto status = same_as_checkpoint(*tensors, *settings); !status) return status;
  if (declared_.empty()) {
    first_ = worker;
    tensors_ = std::move(*tensors);
    program_ = model.settings;
    settings_ = std::move(*settings);
  }
  declared_.insert(worker);
  return {};
}

void ModelCore::withdraw(std::int32_t worker) {
  declared_.erase(worker);
  if (declared_.empty()) {
    tensors_.clear();
    program_.clear();
    settings_ = value_or_throw(effective_settings({}, person_));
  } else if (worker == first_) {
    first_ = *declared_.begin();
  }
}

Status ModelCore::same_as_first(std::int32_t worker, const std::vector<rpc::TensorSpec>& tensors,
                                const SettingValues& program) const {
  if (declared_.empty()) return {};
  const std::string first = fmt::format("worker {}'s model", first_);
  const std::string mine = fmt::format("worker {}'s", worker);
  if (const auto text = difference(tensors_, first, tensors, mine))
    return fail(Code::kRefused, *text + "; all workers must run the same program");
  SettingValues keys = program_;
  keys.insert(program.begin(), program.end());
  for (const auto& [key, unused] : keys) {
    const std::string left = value_or_none(program_, key);
    const std::string right = value_or_none(program, key);
    if (left != right)
      return fail(
          Code::kRefused,
          fmt::format("setting '{}' is {} in worker {}'s program and {} in worker {}'s; all "
                      "workers must run the same program",
                      one_line(key), left, first_, right, worker));
  }
  return {};
}

Status ModelCore::same_as_checkpoint(const std::vector<rpc::TensorSpec>& tensors,
                                     const JobSettings& settings) const {
  if (!restore_) return {};
  std::vector<rpc::TensorSpec> saved;
  for (const storage::ManifestTensor& tensor : restore_->tensors) {
    rpc::TensorSpec spec;
    spec.name = tensor.name;
    spec.shape = tensor.shape;
    saved.push_back(std::move(spec));
  }
  constexpr std::string_view kRemedy =
      "; run the program that wrote it, or start anew with --resume never";
  const std::string name = fmt::format("checkpoint {}", restore_->id);
  if (const auto text = difference(saved, name, tensors, "the program's model"))
    return fail(Code::kRefused, fmt::format("{}{}", *text, kRemedy));
  // Two optimizers may keep as many arrays and mean other things by them.
  const auto it = restore_->settings.find("optimizer");
  const bool other = it != restore_->settings.end() && it->second != settings.optimizer.value;
  if (other || restore_->state_arrays != state_arrays(settings)) {
    return fail(Code::kRefused,
                fmt::format("{} was written with optimizer = {} and this run has optimizer = {}{}",
                            name, it == restore_->settings.end() ? "?" : it->second,
                            settings.optimizer.value, kRemedy));
  }
  return {};
}

Result<rpc::Plan> ModelCore::plan(std::uint32_t servers, std::uint32_t workers) const {
  auto placement = place(tensors_, settings_.partition_elements, servers);
  if (!placement) return tl::unexpected(std::move(placement.error()));
  rpc::Plan plan;
  plan.tensors = std::move(placement->tensors);
  plan.partitions = std::move(placement->partitions);
  plan.settings = values_of(settings_);
  if (!restore_) return plan;
  plan.restore = restore_->id;
  // Whoever the checkpoint does not know starts where the slowest of the others is.
  rpc::WorkerProgress joiner;
  bool any = false;
  for (const auto& [id, saved] : restore_->workers) {
    const auto clock = static_cast<std::int64_t>(saved.clock.value());
    joiner.clock = any ? std::min(joiner.clock, clock) : clock;
    any = true;
  }
  for (std::uint32_t id = 0; id < workers; ++id) {
    rpc::WorkerProgress progress = joiner;
    if (const auto it = restore_->workers.find(id); it != restore_->workers.end()) {
      progress.clock = static_cast<std::int64_t>(it->second.clock.value());
      progress.state.assign(reinterpret_cast<const char*>(it->second.state.data()),
                            it->second.state.size());
      progress.residual = it->second.residual.has_value();
    }
    plan.progress[static_cast<std::int32_t>(id)] = progress;
  }
  // Whoever joins later in another's place goes on beyond it.
  for (const auto& [id, saved] : restore_->workers)
    if (id >= workers)
      plan.progress[static_cast<std::int32_t>(id)].clock =
          static_cast<std::int64_t>(saved.clock.value());
  return plan;
}

storage::Manifest manifest_of(const rpc::Plan& plan, const JobSettings& settings) {
  storage::Manifest manifest;
  for (const rpc::TensorSpec& tensor : plan.tensors)
    manifest.tensors.push_back({tensor.name, tensor.shape});
  for (const rpc::Partition& p : plan.partitions)
    manifest.partitions.push_back(
        {static_cast<std::uint32_t>(p.tensor), static_cast<std::uint64_t>(p.first),
         static_cast<std::uint64_t>(p.elements), static_cast<std::uint32_t>(p.server)});
  manifest.settings = values_of(settings);
  manifest.state_arrays = state_arrays(settings);
  return manifest;
}

}  // namespace leeway::scheduler
