#include "scheduler/wire.h"

#include <thrift/TConfiguration.h>
#include <thrift/TOutput.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>

#include <mutex>

#include "common/log.h"

namespace leeway::scheduler {
namespace {

using apache::thrift::TConfiguration;
using apache::thrift::transport::TFramedTransport;
using apache::thrift::transport::TTransport;
using apache::thrift::transport::TTransportFactory;

// Thrift 0.17 counts the bytes of every string against the size of one message and never starts
// anew, so that a connection breaks after days of heartbeats; and it believes a list's length as
// long as its elements could fit the largest message. Here each frame is a message of its own size.
class MessageFrames : public TFramedTransport {
 public:
  using TFramedTransport::TFramedTransport;
  std::uint32_t readEnd() override {
    resetConsumedMessageSize();
    return TFramedTransport::readEnd();
  }

 protected:
  bool readFrame() override {
    resetConsumedMessageSize();
    if (!TFramedTransport::readFrame()) return false;
    resetConsumedMessageSize(rBound_ - rBase_);
    return true;
  }
};

class BoundedFrames : public TTransportFactory {
 public:
  std::shared_ptr<TTransport> getTransport(std::shared_ptr<TTransport> transport) override {
    return std::make_shared<MessageFrames>(std::move(transport), thrift_limits());
  }
};

}  // namespace

std::shared_ptr<TConfiguration> thrift_limits() {
  constexpr int kNesting = 16;
  return std::make_shared<TConfiguration>(kMaxFrameBytes, kMaxFrameBytes, kNesting);
}

std::shared_ptr<TTransportFactory> framed() { return std::make_shared<BoundedFrames>(); }

std::shared_ptr<apache::thrift::protocol::TProtocolFactory> bounded_binary() {
  return std::make_shared<apache::thrift::protocol::TBinaryProtocolFactory>(
      kMaxFrameBytes, kMaxElements, /*strict_read=*/true, /*strict_write=*/true);
}

void quiet_thrift() {
  static std::once_flag once;
  std::call_once(once, [] {
    apache::thrift::GlobalOutput.setOutputFunction(
        [](const char* text) { log::debug("thrift: {}", text); });
  });
}

rpc::Refused to_refused(const Error& error) {
  rpc::Refused refused;
  refused.code = to_string(error.code);
  refused.message = error.message;
  refused.retryable = error.retryable();
  return refused;
}

Error to_error(const rpc::Refused& refused) {
  for (int i = 0; i <= static_cast<int>(Code::kInternal); ++i)
    if (const auto code = static_cast<Code>(i); to_string(code) == refused.code)
      return {code, refused.message};
  return {refused.retryable ? Code::kUnavailable : Code::kRefused, refused.message};
}

}  // namespace leeway::scheduler
