// Messages to several receivers, gathered into one frame for each: what one turn of the endpoint's
// loop has to say to a peer costs one send.
//
// Called from the endpoint's thread. Whoever adds sees to it that flush() comes in the same turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace leeway::transport {

class Outbox {
 public:
  using Frame = std::vector<std::byte>;
  using Send = std::function<void(std::uint32_t to, const Frame& frame)>;
  Outbox(std::size_t max_frame, Send send) : max_frame_(max_frame), send_(std::move(send)) {}

  // True when it is the first since flush(). A frame that the message does not fit goes out now.
  bool add(std::uint32_t to, const Frame& message) {
    Frame& frame = frames_[to];
    if (frame.size() + message.size() > max_frame_) send_(to, std::exchange(frame, {}));
    frame.insert(frame.end(), message.begin(), message.end());
    return !std::exchange(pending_, true);
  }
  void flush() {
    pending_ = false;
    for (auto& [to, frame] : frames_)
      if (!frame.empty()) {
        send_(to, frame);
        frame.clear();
      }
  }

 private:
  const std::size_t max_frame_;
  const Send send_;
  std::map<std::uint32_t, Frame> frames_;
  bool pending_ = false;
};

}  // namespace leeway::transport
