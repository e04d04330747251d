#include "scheduler/membership.h"

#include <fmt/format.h>

#include "scheduler/one_line.h"

namespace leeway::scheduler {
namespace {

constexpr std::size_t kForgottenKept = 16;

std::vector<Seat> empty_seats(std::uint32_t count) {
  std::vector<Seat> seats(count);
  for (std::uint32_t id = 0; id < count; ++id) {
    seats[id].who.id = static_cast<std::int32_t>(id);
    seats[id].who.state = rpc::MemberState::LIVE;
  }
  return seats;
}

}  // namespace

Membership::Membership(std::uint32_t servers, std::uint32_t workers, std::int64_t first_incarnation)
    : servers_(empty_seats(servers)),
      workers_(empty_seats(workers)),
      next_incarnation_(first_incarnation) {}

bool Membership::holds(const Seat& seat, const rpc::RegisterRequest& request) {
  return seat.taken() && seat.pid == request.pid && seat.host == one_line(request.host) &&
         seat.who.fabric == request.fabric;
}

std::string_view Membership::role_name(rpc::Role::type role) {
  return role == rpc::Role::SERVER ? "server" : "worker";
}

std::string Membership::describe(const Seat& seat, rpc::Role::type role) {
  return fmt::format("{} {} ({}, pid {})", role_name(role), seat.who.id, seat.host, seat.pid);
}

Result<Seat*> Membership::seat(rpc::Role::type role, std::int32_t id) {
  if (role != rpc::Role::SERVER && role != rpc::Role::WORKER)
    return fail(Code::kInvalidArgument,
                fmt::format("role {} is neither server nor worker", static_cast<int>(role)));
  auto& seats = role == rpc::Role::SERVER ? servers_ : workers_;
  if (id < 0 || static_cast<std::size_t>(id) >= seats.size())
    return fail(Code::kRefused, fmt::format("there is no {} {}: the job has {} of them, from 0",
                                            role_name(role), id, seats.size()));
  return &seats[static_cast<std::size_t>(id)];
}

Result<Seat*> Membership::join(const rpc::RegisterRequest& request, TimePoint now) {
  auto found = seat(request.role, request.id);
  if (!found) return found;
  Seat& seat = **found;
  if (holds(seat, request)) return &seat;
  if (seat.taken())
    return fail(Code::kRefused,
                fmt::format("{} is here already and alive; give each process an id of its own",
                            describe(seat, request.role)));
  const rpc::Member empty = seat.who;
  seat = Seat{};
  seat.who = empty;
  seat.who.incarnation = next_incarnation_++;
  seat.who.state = rpc::MemberState::LIVE;
  seat.who.fabric = request.fabric;
  seat.host = one_line(request.host);
  seat.pid = request.pid;
  seat.joined = seat.heard = now;
  return &seat;
}

Result<Seat*> Membership::find(const rpc::Caller& who) {
  auto found = seat(who.role, who.id);
  if (!found) return found;
  const Seat& seat = **found;
  if (const auto it = forgotten_.find(who.incarnation); it != forgotten_.end())
    return fail(Code::kRefused,
                fmt::format("{} {} with incarnation {} did not join: {}", role_name(who.role),
                            who.id, who.incarnation, it->second));
  if (!seat.taken() || who.incarnation > seat.who.incarnation)
    return fail(Code::kRefused,
                fmt::format("{} {} with incarnation {} is not known here; join first",
                            role_name(who.role), who.id, who.incarnation));
  if (who.incarnation < seat.who.incarnation)
    return fail(Code::kRefused,
                fmt::format("{} {} with incarnation {} is stale: a later process has its place "
                            "(incarnation {})",
                            role_name(who.role), who.id, who.incarnation, seat.who.incarnation));
  if (seat.who.state == rpc::MemberState::RESOLVING || seat.who.state == rpc::MemberState::DEAD)
    return fail(Code::kRefused,
                fmt::format("{} {} with incarnation {} was declared dead: {}", role_name(who.role),
                            who.id, who.incarnation, seat.error));
  return found;
}

void Membership::hear(Seat& seat, const rpc::WorkerReport& report, TimePoint now) {
  seat.heard = now;
  seat.reported = true;
  seat.worker = report;
  seat.samples.add(static_cast<double>(report.samples), now);
  seat.pushed.add(static_cast<double>(report.bytes_pushed), now);
  seat.pulled.add(static_cast<double>(report.bytes_pulled), now);
}

void Membership::hear(Seat& seat, const rpc::ServerReport& report, TimePoint now) {
  seat.heard = now;
  seat.reported = true;
  seat.server = report;
  seat.pushed.add(static_cast<double>(report.bytes_read), now);
  seat.pulled.add(static_cast<double>(report.bytes_written), now);
}

void Membership::forgive(Duration gap) {
  for (auto* seats : {&servers_, &workers_})
    for (Seat& seat : *seats) {
      seat.heard += gap;
      seat.joined += gap;
      if (seat.claim) seat.claim = {seat.claim->first + gap, seat.claim->last + gap};
    }
}

void Membership::forget(Seat& joiner, const std::string& why) {
  forgotten_[joiner.who.incarnation] = why;
  if (forgotten_.size() > kForgottenKept) forgotten_.erase(forgotten_.begin());
  const std::shared_ptr<const Seat> before = joiner.joined_later->before;
  if (before)
    joiner = *before;
  else
    vacate(joiner);
}

void Membership::vacate(Seat& seat) {
  const std::int32_t id = seat.who.id;
  const std::string error = seat.error;
  seat = Seat{};
  seat.who.id = id;
  seat.who.state = rpc::MemberState::LIVE;
  seat.error = error;
}

}  // namespace leeway::scheduler
