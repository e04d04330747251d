// Errors of the data path: a code, a message for a person, and whether trying again can help.
//
// Exceptions are for starting and configuring (see ConfigError); everything that runs while a job
// trains returns a Result. Thread safety: plain values.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace leeway {

enum class Code : std::uint8_t {
  kInvalidArgument,  // the caller's mistake
  kNotFound,
  kAlreadyExists,
  kRefused,            // wrong job, token, incarnation or model: trying again will not help
  kUnavailable,        // the other side is not there now
  kTimedOut,           // our own deadline passed
  kResourceExhausted,  // memory, disk, locked memory, descriptors
  kDataLoss,           // bytes on disk or on the wire are not what was written
  kCancelled,          // the job is stopping
  kUnsupported,
  kInternal,
};

std::string_view to_string(Code code) noexcept;

struct [[nodiscard]] Error {
  Code code = Code::kInternal;
  std::string message;

  // True when the same call may succeed later without anybody changing anything.
  bool retryable() const noexcept { return code == Code::kUnavailable || code == Code::kTimedOut; }
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(Code code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

// Thrown while starting and configuring: `what()` is one line that names the thing and the remedy.
class ConfigError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Turns a failed Result into a ConfigError, at start-up only.
template <typename T>
T value_or_throw(Result<T> result) {
  if (!result) throw ConfigError(result.error().message);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace leeway

// For our own invariants, never for what a peer or a file said: prints and aborts.
#define LEEWAY_CHECK(condition)                                               \
  do {                                                                        \
    if (!(condition)) ::leeway::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)

namespace leeway {
[[noreturn]] void check_failed(const char* condition, const char* file, int line) noexcept;
}
