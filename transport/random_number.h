// Numbers that nobody can guess: names, keys, incarnations. Any thread.
#pragma once

#include <cstdint>

namespace leeway::transport {

std::uint64_t random_number();  // throws ConfigError

}  // namespace leeway::transport
