// From the scheduler's words (scheduler.thrift) to the engine's, and back. Pure conversions; what
// the scheduler says is checked for what would break the engine.
#pragma once

#include <cstdint>
#include <string>

#include "common/result.h"
#include "scheduler_types.h"  // generated
#include "server/engine.h"
#include "transport/endpoint.h"

namespace leeway::server {

// `base` holds what does not come from the plan: server, incarnation, job, threads, faults.
Result<EngineConfig> read_plan(EngineConfig base, const rpc::Plan& plan, const rpc::View& view);
// `settings`: the job's as planned; the view may have changed some since.
Result<EngineView> read_view(const rpc::View& view, const rpc::Plan& plan);
rpc::ServerReport write_report(const EngineReport& report);
rpc::FabricAddress write_address(const transport::EndpointInfo& info);

}  // namespace leeway::server
