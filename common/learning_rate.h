// The learning rate over a job: warm-up, then a schedule. Computed by the servers for each update
// and by the scheduler for what a status shows, from the same settings. No I/O, no state.
//
//   warm-up   clock c < warmup_steps: the schedule's value times (c + 1) / warmup_steps
//   constant  1
//   step      schedule_factor ^ floor(c / schedule_steps)
//   linear    from 1 at the end of the warm-up to schedule_factor at clock schedule_steps, then
//   that cosine    the same along half a cosine (Loshchilov and Hutter 2017, eq. 5, without
//   restarts)
//
// all times learning_rate, which may change while the job runs.
#pragma once

#include <cstdint>

#include "common/job_settings.h"

namespace leeway {

// What the learning rate is multiplied by in updates with steps of clock `clock`, counted from 0.
double learning_rate_factor(const JobSettings& settings, std::uint64_t clock);

}  // namespace leeway
