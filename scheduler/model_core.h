// What the workers say the model is, and the settings that follow. Refusals name the tensor or the
// setting, and who said what. No I/O and no clock. Guarded by whoever owns it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/job_settings.h"
#include "common/result.h"
#include "scheduler_types.h"  // generated
#include "storage/checkpoint_store.h"

namespace leeway::scheduler {

using SettingValues = std::map<std::string, std::string>;

// default < what the program says < what the person said; checked as a whole.
Result<JobSettings> effective_settings(const SettingValues& program, const SettingValues& person);
SettingValues values_of(JobSettings settings);

class ModelCore {
 public:
  ModelCore(SettingValues person, std::optional<storage::Manifest> restore);

  // The first model is the job's; later ones must say the same, in any order.
  Status declare(std::int32_t worker, const rpc::Model& model);
  // The worker left before the job began.
  void withdraw(std::int32_t worker);

  // As long as nobody declared: without the program's part.
  const JobSettings& settings() const { return settings_; }
  const std::optional<storage::Manifest>& restore() const { return restore_; }
  Result<rpc::Plan> plan(std::uint32_t servers, std::uint32_t workers) const;

 private:
  Status same_as_first(std::int32_t worker, const std::vector<rpc::TensorSpec>& tensors,
                       const SettingValues& program) const;
  Status same_as_checkpoint(const std::vector<rpc::TensorSpec>& tensors,
                            const JobSettings& settings) const;

  const SettingValues person_;
  const std::optional<storage::Manifest> restore_;
  JobSettings settings_;
  std::set<std::int32_t> declared_;
  std::int32_t first_ = 0;                // who declared what is below
  std::vector<rpc::TensorSpec> tensors_;  // in name order
  SettingValues program_;
};

// Master and optimizer state: how many arrays beside the master this optimizer has.
std::uint32_t state_arrays(const JobSettings& settings);
// A manifest with the plan's part filled.
storage::Manifest manifest_of(const rpc::Plan& plan, const JobSettings& settings);

}  // namespace leeway::scheduler
