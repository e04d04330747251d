#include "common/result.h"

#include <cstdio>
#include <cstdlib>

namespace leeway {

std::string_view to_string(Code code) noexcept {
  switch (code) {
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kNotFound:
      return "not found";
    case Code::kAlreadyExists:
      return "already exists";
    case Code::kRefused:
      return "refused";
    case Code::kUnavailable:
      return "unavailable";
    case Code::kTimedOut:
      return "timed out";
    case Code::kResourceExhausted:
      return "resource exhausted";
    case Code::kDataLoss:
      return "data loss";
    case Code::kCancelled:
      return "cancelled";
    case Code::kUnsupported:
      return "unsupported";
    case Code::kInternal:
      return "internal";
  }
  return "unknown";
}

void check_failed(const char* condition, const char* file, int line) noexcept {
  std::fprintf(stderr, "leeway: broken invariant at %s:%d: %s\n", file, line, condition);
  std::abort();
}

}  // namespace leeway
