// What a session and the scheduler tell each other while the session gets its place in the job, in
// the words of either side. No I/O.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/job_settings.h"
#include "common/result.h"
#include "scheduler_types.h"  // generated
#include "transport/endpoint.h"
#include "worker/data_plane.h"
#include "worker/loss_scaler.h"
#include "worker/session.h"

namespace leeway::worker {

rpc::RegisterRequest register_request(const SessionOptions& options,
                                      const transport::EndpointInfo& fabric);

// The job's, from a scheduler of this version.
Result<JobSettings> settings_from(const std::map<std::string, std::string>& values);

struct Membership {
  std::uint64_t job = 0;
  std::uint32_t rank = 0, world_size = 1;
  std::size_t servers = 0;
  JobSettings settings;
  std::string checkpoint_dir;  // "" = none
};
// kRefused when the job is not what the program was started for.
Result<Membership> membership_from(const rpc::Registration& registration,
                                   const SessionOptions& options);

LossScaler scaler_for(const JobSettings& settings);

// Where the worker begins: at clock 0, where the checkpoint left it, or where it joined.
struct Beginning {
  Clock clock;
  LossScaler scaler;
};
Result<Beginning> beginning_of(const rpc::Plan& plan, std::int32_t worker,
                               const JobSettings& settings);

// All `count` of the job, by id.
Result<std::vector<DataPlane::Server>> servers_in(const rpc::View& view, std::size_t count);

}  // namespace leeway::worker
