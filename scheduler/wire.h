// How both ends set Thrift up: framed TCP, binary protocol, everything bounded. Nothing that a peer
// sends makes us allocate more than one frame and kMaxElements of a list.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/result.h"
#include "scheduler_types.h"  // generated

namespace apache::thrift {
class TConfiguration;
namespace protocol {
class TProtocolFactory;
}
namespace transport {
class TTransportFactory;
}
}  // namespace apache::thrift

namespace leeway::scheduler {

// The largest message is a Plan: kMaxPartitions (placement.h) of 44 bytes and the tensors' names.
constexpr std::int32_t kMaxFrameBytes = 64 << 20;
constexpr std::int32_t kMaxElements = 1 << 20;  // of one list or map

std::shared_ptr<apache::thrift::TConfiguration> thrift_limits();
std::shared_ptr<apache::thrift::transport::TTransportFactory> framed();
std::shared_ptr<apache::thrift::protocol::TProtocolFactory> bounded_binary();
// Thrift prints errors of its own to stderr; ours are returned and printed once. Idempotent.
void quiet_thrift();

rpc::Refused to_refused(const Error& error);
Error to_error(const rpc::Refused& refused);

}  // namespace leeway::scheduler
