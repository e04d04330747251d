// What of a step is sent, taken, committed and pulled: every decision of a worker's half of the
// protocol (ARCHITECTURE.md, "The life of a push" and "Atomic steps"), without I/O.
//
// Called from one thread (the endpoint's). Inputs are what the program did and what servers
// answered; outputs are effects, to be carried out in their order. The rules:
//
//   * The ending of step c (COMMIT or ABANDON) goes to every server, also to those without a
//     partition of this model, when the program has ended the step, every push of it was taken, and
//     the ending before it was confirmed by every server. So at most one ending is on its way, and
//     servers never disagree by more than one step. An only server has nobody to disagree with: its
//     COMMIT goes at once, and it counts the step when it has the payloads.
//   * A push goes to a server that confirmed the ending before: fabrics need not keep the order of
//     two messages, and a server takes no push of a step whose predecessor has not ended there.
//   * PULL c+1 goes to every server with the ending of step c. Weights are ready when all have
//     answered.
//   * Initial values are pushed and ended the same way, with Ending::kInitial and no pull.
//
// Answers that come late or twice change nothing. Answers that no right server gives are errors
// (kInternal) that name the server; the state is unchanged then.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/ids.h"
#include "common/knobs.h"
#include "common/result.h"
#include "transport/messages.h"

namespace leeway::worker {

// Send these partitions of the step's gradient, or of the initial values.
struct SendPush {
  ServerId server;
  Clock clock;
  std::vector<PartitionId> partitions;
  float scale = 1;
  bool initial = false;
};
struct SendEnding {
  ServerId server;
  transport::Commit commit;
};
struct SendPull {
  struct Held {
    PartitionId partition;
    Version have;
  };
  ServerId server;
  Clock clock;
  std::uint32_t request = 0;
  std::uint32_t staleness = 0;
  std::vector<Held> partitions;
};
// So many payloads more are the servers' now.
struct PayloadsTaken {
  std::size_t partitions = 0;
};
// Every server has confirmed how the step at `clock` ended.
struct EndingConfirmed {
  Clock clock;
  transport::Ending ending = transport::Ending::kCommit;
};
// Every server has answered the pull for the step at `clock`.
struct WeightsReady {
  Clock clock;
  std::uint64_t staleness = 0;  // observed, the largest over the servers
  bool violation = false;       // it exceeds the bound of the pull
  bool final = false;           // answers pull_final()
  std::vector<PartitionId> changed;
  std::vector<std::uint64_t> by_server;  // observed staleness
  std::uint32_t bound = 0;               // in force, the largest; kUnboundedStaleness = inf
};
using Effect =
    std::variant<SendPush, SendEnding, SendPull, PayloadsTaken, EndingConfirmed, WeightsReady>;
using Effects = std::vector<Effect>;

class StepCore {
 public:
  struct Config {
    std::vector<std::vector<PartitionId>> shards;  // by server; a server may have none
    Bound staleness;
    bool consistent = false;  // every pull must be of one cut
    Clock clock;              // steps done already: above 0 after a resume
  };
  explicit StepCore(Config config);

  // The program's doing. kInvalidArgument when it does not fit the state: a partition pushed twice
  // or not in the model, anything after the end of a step whose ending is still to be sent.
  Result<Effects> push(const std::vector<PartitionId>& partitions, float scale, bool initial);
  // For kCommit and kInitial every partition was pushed before.
  // `factor`: Commit::factor, the same for every server.
  Result<Effects> end(transport::Ending ending, std::uint32_t samples,
                      std::vector<std::byte> worker_state, float factor = 1);
  // For the first step; later ones are asked for with the ending before.
  Result<Effects> pull_first();
  // With bound 0, when the pull on its way is answered: two never write one buffer.
  Result<Effects> pull_final();

  // Servers' answers.
  Result<Effects> taken(ServerId from, const transport::PushTaken& message);
  Result<Effects> committed(ServerId from, const transport::Committed& message);
  Result<Effects> pulled(ServerId from, const transport::Pulled& message);

  // Steps whose ending was sent (or was done before this start).
  Clock clock() const noexcept { return clock_; }
  // Of the weights that servers have answered with, by partition.
  const std::vector<Version>& versions() const noexcept { return have_; }
  // What is outstanding, for people: "server.1 has not taken 3 payloads of step 12"; "" = nothing.
  std::string waiting_for() const;

 private:
  enum class Payload : std::uint8_t { kIdle, kPushed, kTaken };

  // The step being filled, or the initial values.
  struct Filling {
    std::vector<Payload> payloads;  // by partition
    std::size_t pushed = 0;         // and not yet taken
    std::size_t ever_pushed = 0;
    bool initial = false;                  // initial values, no gradient
    std::optional<transport::Commit> end;  // given by the program, not yet sent
  };
  struct Unconfirmed {
    transport::Ending ending = transport::Ending::kCommit;
    Clock clock;
    std::vector<bool> by_server;
    std::size_t count = 0;
    std::size_t untaken = 0;  // payloads that the only server had not taken when it was sent
  };
  struct Pulling {
    struct Answer {
      std::optional<std::uint32_t> total;
      std::size_t entries = 0;
      bool complete = false;
    };
    Clock clock;
    std::uint32_t request = 0;
    Bound bound;
    bool final = false;
    std::vector<Answer> answers;  // by server
    std::vector<bool> seen;       // by partition
    std::size_t incomplete = 0;   // servers
    std::uint64_t staleness = 0;
    std::vector<std::uint64_t> by_server;
    std::uint32_t in_force = 0;
    std::vector<PartitionId> changed;
  };

  bool owns(ServerId server, PartitionId partition) const noexcept;
  void advance(Effects& effects);
  // Two partitions whose weights are not of one cut, or nothing.
  std::optional<std::pair<PartitionId, PartitionId>> torn() const;
  void start_pull(Clock clock, Bound bound, bool final, Effects& effects);

  const std::vector<std::vector<PartitionId>> shards_;
  const Bound bound_;
  const bool consistent_;
  std::vector<std::optional<ServerId>> owner_;  // by partition
  std::size_t partitions_ = 0;
  std::vector<Version> have_;

  Clock clock_;
  Filling filling_;
  Unconfirmed unconfirmed_;
  std::vector<std::vector<SendPush>> held_;  // by server, until it confirms the ending before
  bool initial_sent_ = false;
  std::optional<Pulling> pulling_;
  std::uint32_t last_request_ = 0;
  bool final_wanted_ = false;
};

}  // namespace leeway::worker
