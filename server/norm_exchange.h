// Which norms an update with lamb still lacks, and what other servers must be told for theirs.
//
// A tensor's trust ratio needs the sums of all its parts. Those of one server are added here as its
// partitions come out of their first pass; when all have, each other server gets, in one message,
// the sums of the tensors that it has a part of, too. What other servers send is added to ours:
// without rounding, so that all get the same bits, however the tensor is cut. Tensors that one
// partition holds are none of this object's business, and those that lie on this server alone need
// no message.
//
// Every server makes an update for each clock that has a gradient, with the same steps in it
// (update = per_clock, no quorum), so sums belong together by their clock. A server gets to the
// next clock when it has everybody's sums of this one: another one's sums are of this clock or of
// the next. A server whose workers' COMMITs are late, or which stands still for a checkpoint, sends
// later (Consistency::held); one that sends nothing for longer than `patience` makes this one give
// up.
//
// No I/O, no threads: owned by the consistency core.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/exact_sum.h"
#include "common/ids.h"
#include "common/monotonic.h"
#include "server/effects.h"

namespace leeway::server {

// All empty with any other optimizer.
struct NormConfig {
  struct Tensor {
    TensorId id;
    std::string name;
    std::vector<LocalPartition> parts;  // here, at least one
    std::vector<ServerId> others;       // that have a part, too
  };
  std::vector<Tensor> tensors;  // those of which a partition is a part
  std::map<ServerId, Incarnation> servers;
  Duration patience = std::chrono::seconds(30);
};

class NormExchange {
 public:
  NormExchange(const NormConfig& config, bool any_clock);  // any_clock: a planted bug

  void begin(Clock clock);
  void part_summed(LocalPartition partition, const NormSums& sums, TimePoint now, Effects& effects);
  void receive(ServerId from, const transport::Norms& norms, Effects& effects);
  void tick(TimePoint now, Effects& effects);
  void end();

  // An update runs of which this server has done what others need: it cannot be taken back.
  bool own_done() const noexcept { return runs_ && own_left_ == 0; }
  // Another server is in the update of this clock already.
  bool begun_elsewhere(Clock clock) const;
  // It lacks something from others.
  bool waiting() const noexcept { return since_.has_value(); }
  // Who waits for whom, if since before then.
  std::optional<std::string> waiting_since(TimePoint then) const;

 private:
  struct Tensor {
    std::size_t parts_left = 0;
    std::vector<ServerId> missing;
    NormSums own, all;  // so far
  };
  // What a server that is ahead sent of the next clock.
  struct Early {
    Clock clock;
    std::map<std::size_t, NormSums> sums;  // by tensor
  };

  void send(Effects& effects) const;
  // False when it was there already.
  bool add(std::size_t tensor, ServerId from, const NormSums& sums);
  void step_if_whole(std::size_t tensor, Effects& effects) const;
  void ask_for_tick(Effects& effects);
  std::string whom() const;

  const NormConfig& config_;
  const bool any_clock_;
  std::unordered_map<LocalPartition, std::size_t> tensor_of_;
  std::unordered_map<TensorId, std::size_t> index_;

  bool runs_ = false;
  Clock clock_;  // of the update that runs, or the first that may come
  std::vector<Tensor> tensors_;
  std::size_t own_left_ = 0;        // tensors that are not summed here yet
  std::size_t missing_ = 0;         // sums of others, over all tensors
  std::optional<TimePoint> since_;  // waiting
  bool armed_ = false;              // a tick will come ...
  TimePoint tick_at_{};             // then
  std::map<ServerId, Early> early_;
};

}  // namespace leeway::server
