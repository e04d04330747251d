// With which numbers a server makes an update: the optimizer's, the learning rate at the shard's
// clock, and what staleness does to each contribution. No I/O, no threads.
//
//   learning rate   learning_rate * learning_rate_factor(clock) (common/learning_rate.h), clock the
//                   largest of any step that went into an update here: it never goes back, and a
//                   slow worker's step is applied at the rate of the job, not at that of its own
//                   past
//   staleness_rate  inverse: the learning rate over 1 + tau (Zhang et al. 2016, Staleness-aware
//                   async-SGD, eq. 4-6, with 1 + tau for tau, which is 0 here for a fresh
//                   gradient). An update of several contributions takes the mean of their rates,
//                   and each contribution counts by its share of that mean.
//   staleness_decay alpha, staleness_cutoff C: a gradient times gate(tau) * exp(-alpha * tau)
//   before
//                   it enters any state, as Cosine-Gated Adam-Decay does (arXiv 2605.09126). Our
//                   gate is a raised cosine, (1 + cos(pi * tau / C)) / 2 below C and 0 from C on;
//                   theirs fades to zero at a cutoff, too, and may have another shape.
//
// tau is Contribution::staleness. Both may be used together, with every optimizer. With tau = 0
// nothing changes, bit by bit.
//
// Called from one thread, the endpoint's.
#pragma once

#include "common/job_settings.h"
#include "kernels/optimizer.h"
#include "server/effects.h"

namespace leeway::server {

class UpdateRule {
 public:
  // `clock`: the largest clock of any worker of a restored job, else 0.
  UpdateRule(const JobSettings& settings, Clock clock);

  Optimizer optimizer() const noexcept { return optimizer_; }
  const kernels::Hyper& hyper() const noexcept { return hyper_; }
  // Takes the learning rate and its schedule, which may change while the job runs.
  void change(const JobSettings& settings);

  // Fills the rate of this update and multiplies the factors of its contributions.
  void weigh(Sum& sum);
  // What staleness does to late steps, before they are summed up. (Their rates are not part of the
  // next update's mean.)
  void weigh(FoldLate& late);

 private:
  double rate_of(const Contribution& contribution) const;
  double decay_of(const Contribution& contribution) const;

  JobSettings settings_;
  const Optimizer optimizer_;
  kernels::Hyper hyper_;
  Clock clock_;
};

}  // namespace leeway::server
