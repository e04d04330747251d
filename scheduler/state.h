// What the scheduler keeps across restarts, in the ManifestStore of the checkpoint directory: the
// incarnations it gave away, and the committed checkpoints.
#pragma once

#include <string>

#include "scheduler/job_core.h"
#include "storage/checkpoint_store.h"

namespace leeway::scheduler {

// Which checkpoint a job goes on from: "auto" (the newest, if there is one), "never", or an id.
// ConfigError when what is there cannot be read, or the id is not there.
void load_state(storage::ManifestStore& store, const std::string& resume, JobSetup& setup);

}  // namespace leeway::scheduler
