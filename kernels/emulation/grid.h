// Runs a CUDA grid on the host: blocks one after another, the threads of a block as fibers that
// take turns on the calling thread and meet at barriers and in warp exchanges.
//
// Called from one thread at a time. run_grid() throws std::logic_error, and what is left of the
// grid does not run, when the threads of a block can no longer meet: some ended while others wait
// at a barrier, or they wait in different places. An exception of a kernel comes out of run_grid().
#pragma once

#include <cstdint>
#include <functional>
#include <source_location>

namespace leeway::kernels::emulation {

struct Index {
  unsigned x = 0;
};

// Of the fiber that runs.
extern Index threadIdx;
extern Index blockIdx;
extern Index blockDim;
extern Index gridDim;

// `body` runs once for each thread of each block.
void run_grid(unsigned blocks, unsigned threads, const std::function<void()>& body);

// Within a body only.
void sync_block(const std::source_location& where);
// The value that lane source(lane) gave; the own one when there is no such lane in the warp.
std::uint32_t exchange_in_warp(unsigned mask, std::uint32_t value,
                               const std::function<unsigned(unsigned)>& source,
                               const std::source_location& where);
unsigned ballot_in_warp(unsigned mask, bool predicate, const std::source_location& where);

}  // namespace leeway::kernels::emulation
