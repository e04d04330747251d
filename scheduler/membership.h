// Who belongs to the job: slots for so many servers and workers, and the process that holds each.
// No I/O and no clock of its own. Guarded by whoever owns it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/monotonic.h"
#include "common/result.h"
#include "scheduler/rate_meter.h"
#include "scheduler_types.h"  // generated

namespace leeway::scheduler {

// One slot. Empty while `who.incarnation` is 0.
struct Seat {
  rpc::Member who;
  std::string host;
  std::int64_t pid = 0;
  TimePoint joined{};
  TimePoint heard{};
  bool reported = false;  // at least once
  bool declared = false;  // workers
  std::string error;      // what it said, or was said of it, when it left
  rpc::WorkerReport worker;
  rpc::ServerReport server;
  RateMeter samples, pushed, pulled;

  // Of a worker that came while the job trained.
  struct Joining {
    std::shared_ptr<const Seat> before;    // whoever died here, until this one is taken in
    std::optional<std::int64_t> told;      // the view from which on servers know of it
    std::optional<std::int64_t> taken_in;  // the view from which on it is LIVE
  };
  std::optional<Joining> joined_later;
  // Another process asked for this place, at first and last, while its holder seemed alive.
  struct Claim {
    TimePoint first, last;
  };
  std::optional<Claim> claim;

  bool taken() const { return who.incarnation != 0; }
  bool live() const { return is(rpc::MemberState::LIVE); }
  bool joining() const { return is(rpc::MemberState::JOINING); }
  bool is(rpc::MemberState::type state) const { return taken() && who.state == state; }
};

class Membership {
 public:
  Membership(std::uint32_t servers, std::uint32_t workers, std::int64_t first_incarnation);

  // It is the process in the seat that asks.
  static bool holds(const Seat& seat, const rpc::RegisterRequest& request);
  // A new process takes its slot; the same process asking again gets what it had.
  Result<Seat*> join(const rpc::RegisterRequest& request, TimePoint now);
  // The seat of a caller, if the caller is the process that holds it.
  Result<Seat*> find(const rpc::Caller& who);
  Result<Seat*> seat(rpc::Role::type role, std::int32_t id);

  void hear(Seat& seat, const rpc::WorkerReport& report, TimePoint now);
  void hear(Seat& seat, const rpc::ServerReport& report, TimePoint now);
  // The scheduler itself slept: nobody's silence counts for that time.
  void forgive(Duration gap);
  // The seat's process is gone and may be replaced.
  static void vacate(Seat& seat);
  // The seat's joiner is gone; whoever died there before is what is known of the place again.
  void forget(Seat& joiner, const std::string& why);

  std::vector<Seat>& servers() { return servers_; }
  std::vector<Seat>& workers() { return workers_; }
  const std::vector<Seat>& servers() const { return servers_; }
  const std::vector<Seat>& workers() const { return workers_; }

  static std::string_view role_name(rpc::Role::type role);
  // "worker 2 (node7, pid 4711)"
  static std::string describe(const Seat& seat, rpc::Role::type role);

 private:
  std::vector<Seat> servers_;
  std::vector<Seat> workers_;
  std::int64_t next_incarnation_;
  std::map<std::int64_t, std::string> forgotten_;  // the last joiners, and why
};

}  // namespace leeway::scheduler
