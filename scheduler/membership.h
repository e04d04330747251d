// Who belongs to the job: slots for so many servers and workers, and the process that holds each.
// No I/O and no clock of its own. Guarded by whoever owns it.
#pragma once

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

  bool taken() const { return who.incarnation != 0; }
  bool live() const { return taken() && who.state == rpc::MemberState::LIVE; }
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
};

}  // namespace leeway::scheduler
