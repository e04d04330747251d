// The processes that `leeway-bench pushpull` starts: servers with the real shard engine, and
// workers.
#pragma once

#include <cstdint>
#include <string>

namespace leeway::bench {

// What `leeway-bench pushpull-server` and `pushpull-worker` do, until the parent hangs up. Errors
// go to the parent. Returns the exit code.
int serve_as_server(const std::string& fabric, std::uint32_t index);
int serve_as_worker(const std::string& fabric, std::uint32_t index);

}  // namespace leeway::bench
