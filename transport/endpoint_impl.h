// The inside of an Endpoint. Included by this folder's .cc files only.
//
// Everything below `thread_` belongs to the endpoint's thread once that runs, and to the opening
// thread before. Member order is close order, reversed: the thread first, then the libfabric
// endpoint, its queues, and the buffers that it was given.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/counter.h"
#include "transport/endpoint.h"
#include "transport/operation.h"
#include "transport/region.h"
#include "transport/send_buffers.h"
#include "transport/task_queue.h"
#include "transport/timer_heap.h"
#include "transport/waiter.h"

namespace leeway::transport {

class Endpoint::Impl {
 public:
  explicit Impl(const EndpointOptions& options);  // throws ConfigError
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const EndpointInfo& info() const noexcept { return info_; }
  const std::shared_ptr<Domain>& domain() const noexcept { return domain_; }
  EndpointCounters counters() const noexcept;

  // endpoint_loop.cc
  void start(MessageHandler handler);
  bool post(Task task);
  void at(TimePoint when, Task task);
  void stop();

  // endpoint_peers.cc
  Result<Peer> connect(std::span<const std::byte> address);
  void disconnect(Peer peer);

  // endpoint_transfers.cc
  void send(Peer peer, std::span<const std::byte> message, TimePoint deadline, Completion done);
  void transfer(Operation::Kind kind, Peer peer, LocalRange local, RemoteRange remote,
                TimePoint deadline, Completion done);
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

  // endpoint.cc
  void open_objects(const EndpointOptions& options);
  void describe();

  // endpoint_loop.cc
  void run();
  bool run_tasks();
  bool read_queue();
  void read_queue_error();
  bool fire_timers(TimePoint now);
  bool deliver();
  void wait(TimePoint now);
  void linger();
  void shut_down();
  void received(ReceiveBuffer& buffer, std::size_t length);
  void repost(ReceiveBuffer& buffer);

  // endpoint_transfers.cc
  enum class Posting { kDone, kLater };
  Operation* begin(Operation::Kind kind, Peer peer, TimePoint deadline, Completion& done);
  void start_operation(Operation& operation);
  Posting advance(Operation& operation);
  ssize_t post_segment(Operation& operation, Segment& segment, std::size_t length);
  void segment_done(Segment& segment, Status status);
  void report(Operation& operation, Outcome outcome);
  void recycle_if_over(Operation& operation);
  void leave_queue(Operation& operation);
  bool retry_waiting();
  void finish_later(Completion done, Outcome outcome);
  void cancel_all(Code code, const std::string& why, std::uint64_t only_peer);
  Status failure(const Operation& operation, int error, const std::string& provider_text) const;
  Segment& take_segment(Operation& operation);

  // endpoint_peers.cc
  PeerState* find_peer(std::uint64_t id) noexcept;
  void forget_if_unused(const std::shared_ptr<Address>& address);

  const EndpointOptions options_;
  std::shared_ptr<Domain> domain_;
  EndpointInfo info_;
  std::size_t segment_limit_ = 0;
  MetricCounter messages_sent_, messages_received_, bytes_read_, bytes_written_;

  std::shared_ptr<Region> receive_region_;
  std::vector<ReceiveBuffer> receive_buffers_;
  std::unique_ptr<SendBuffers> send_buffers_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<Segment*> free_segments_;
  TimerHeap timers_;
  std::list<Delayed> delayed_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<Operation*> free_operations_;
  std::map<std::string, std::shared_ptr<Address>, std::less<>> addresses_;
  std::map<std::string, std::uint64_t, std::less<>> peer_by_address_;
  std::unordered_map<std::uint64_t, std::unique_ptr<PeerState>> peers_;
  std::uint64_t next_peer_ = 1;
  std::vector<std::uint64_t> waiting_peers_;       // with a list that is not empty
  std::vector<ReceiveBuffer*> unposted_receives_;  // the provider said "try again"
  std::vector<Finished> finished_;                 // to be delivered by the loop
  std::vector<Task> taken_tasks_;
  MessageHandler handler_;
  bool stopping_ = false;  // operations are cancelled as they begin

  Fid<fid_av> addresses_fid_;
  Fid<fid_cq> queue_;
  Fid<fid_ep> endpoint_;
  std::unique_ptr<Waiter> waiter_;
  TaskQueue tasks_;
  std::jthread thread_;
};

}  // namespace leeway::transport
