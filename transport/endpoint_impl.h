// The inside of an Endpoint. Included by this folder's .cc files, and by tests that make an
// endpoint over rails of their own.
//
// Everything below `thread_` belongs to the endpoint's thread once that runs, and to the opening
// thread before. Member order is close order, reversed: the thread first, then the rails, then what
// they were given.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/counter.h"
#include "transport/address.h"
#include "transport/endpoint.h"
#include "transport/operation.h"
#include "transport/rail.h"
#include "transport/region.h"
#include "transport/task_queue.h"
#include "transport/timer_heap.h"
#include "transport/waiter.h"

namespace leeway::transport {

class Endpoint::Impl final : private RailUser {
 public:
  Impl(std::vector<std::unique_ptr<Rail>> rails, const EndpointOptions& options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const EndpointInfo& info() const noexcept { return info_; }
  Result<std::shared_ptr<Region>> allocate(std::size_t bytes, Access access);
  Result<std::shared_ptr<Region>> enlist(ForeignMemory memory, Access access);
  EndpointCounters counters() const noexcept;

  // endpoint_loop.cc
  void start(MessageHandler handler);
  bool post(Task task);
  void at(TimePoint when, Task task);
  void stop();

  // endpoint_peers.cc
  bool could_reach(std::span<const std::byte> address) const;
  Result<Peer> connect(std::span<const std::byte> address);
  void disconnect(Peer peer);

  // endpoint_transfers.cc
  void send(Peer peer, std::span<const std::byte> message, TimePoint deadline, Completion done);
  void transfer(Operation::Kind kind, Peer peer, LocalRange local, RemoteRange remote,
                TimePoint deadline, Completion done);
  std::shared_ptr<const std::byte> map(Peer peer, const RemoteRange& from, std::size_t size);
  void timed_out(Operation& operation);

 private:
  struct Finished {
    Completion done;
    Outcome outcome;
  };
  // A task of at().
  struct Delayed final : Timer {
    explicit Delayed(Impl& impl) : owner(impl) {}
    void expire() override;

    Impl& owner;
    Task task;
    std::list<Delayed>::iterator place_in_list{};
  };

  bool on_own_thread() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }

  // endpoint_loop.cc
  void run();
  bool run_tasks();
  bool poll_rails();
  void message(std::span<const std::byte> bytes) override;
  void done(Ticket& ticket, Status status) override;
  bool fire_timers(TimePoint now);
  bool deliver();
  void wait(TimePoint now);
  void shut_down();

  // endpoint_transfers.cc
  enum class Posting { kDone, kLater };
  Operation* begin(Operation::Kind kind, Peer peer, TimePoint deadline, Completion& done);
  void start_operation(Operation& operation);
  void queue_up(Operation& operation, bool first);
  Posting advance(Operation& operation);
  Result<Rail::Post> post_piece(Operation& operation, PeerState& peer, Link& link, Piece piece);
  void piece_over(Posted& posted, Status status);
  void report(Operation& operation, Outcome outcome);
  void end_if_over(Operation& operation);
  void leave_queue(Operation& operation);
  bool retry_waiting();
  bool give_up_silent_links(PeerState& peer, Operation& operation);
  void finish_later(Completion done, Outcome outcome);
  void cancel_all(Code code, const std::string& why, std::uint64_t only_peer);
  Posted& take_posted();
  void give_back(Posted& posted);

  // endpoint_peers.cc
  PeerState* find_peer(std::uint64_t id) noexcept;
  // The link for the next piece of a bulk transfer, or of a message. Null: none knows the memory.
  Link* choose_link(PeerState& peer, const Operation& operation, std::size_t size);
  static bool carries(const Link& link, const Operation& operation) noexcept;
  static Link* find_link(PeerState& peer, std::size_t rail) noexcept;
  Status reach(Link& link);
  // True: other links are left to try for what the operation lost on this one.
  static bool may_go_on(Operation& operation, const PeerState& peer, Operation::Failure failure);
  void link_failed(PeerState& peer, Link& link, const Error& error);
  // Something that was posted over this connection has ended well.
  void link_works(const PeerState& peer, Link& link, std::uint32_t connection);
  void hang_up(Link& link);

  const EndpointOptions options_;
  EndpointInfo info_;
  EndpointAddress address_;
  MetricCounter messages_sent_, messages_received_, bytes_read_, bytes_written_;
  std::shared_ptr<RegionList> regions_ = std::make_shared<RegionList>();

  std::vector<std::unique_ptr<Posted>> posted_;
  std::vector<Posted*> free_posted_;
  TimerHeap timers_;
  std::list<Delayed> delayed_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<Operation*> free_operations_;
  std::unordered_map<std::uint64_t, std::unique_ptr<PeerState>> peers_;
  std::map<std::string, std::uint64_t, std::less<>> peer_by_address_;
  std::uint64_t next_peer_ = 1;
  std::vector<std::uint64_t> waiting_peers_;  // with a list that is not empty
  std::vector<Finished> finished_;            // to be delivered by the loop
  std::vector<Task> taken_tasks_;
  MessageHandler handler_;
  bool stopping_ = false;  // operations are cancelled as they begin

  std::vector<std::unique_ptr<Rail>> rails_;
  std::unique_ptr<Waiter> waiter_;
  TaskQueue tasks_;
  std::jthread thread_;
};

// An endpoint over these rails, for tests that bring their own.
std::unique_ptr<Endpoint> endpoint_over(std::vector<std::unique_ptr<Rail>> rails,
                                        const EndpointOptions& options);

}  // namespace leeway::transport
