// The emulation itself: it must find what a GPU would not forgive.
#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/device_math.cuh"

namespace leeway::kernels::emulated {
namespace {

constexpr unsigned kAll = 0xFFFFFFFFu;

// Each thread's number goes through shared memory to the thread on the other side of the block.
void reverse_kernel(int* data) {
  __shared__ int exchanged[96];
  const unsigned n = blockDim.x;
  const unsigned at = blockIdx.x * n + threadIdx.x;
  exchanged[threadIdx.x] = data[at];
  __syncthreads();
  data[at] = exchanged[n - 1 - threadIdx.x];
}

void early_exit_kernel(int* data) {
  if (threadIdx.x == 5) return;
  __syncthreads();
  data[threadIdx.x] = 1;
}

void two_barriers_kernel(int* data) {
  if (threadIdx.x < 16) {
    __syncthreads();
    data[0] = 1;
  } else {
    __syncthreads();
    data[1] = 1;
  }
}

void half_warp_shuffle_kernel(int* data) {
  if (threadIdx.x % kWarpSize < 16) data[threadIdx.x] = __shfl_down_sync(kAll, 1, 1);
}

void barrier_against_shuffle_kernel(int* data) {
  if (threadIdx.x == 0)
    __syncthreads();
  else
    data[threadIdx.x] = __shfl_xor_sync(kAll, 1, 1);
}

void warp_kernel(int* down, int* crossed, unsigned* votes) {
  const int id = static_cast<int>(threadIdx.x);
  down[id] = __shfl_down_sync(kAll, id, 1);
  crossed[id] = __shfl_xor_sync(kAll, id, 16);
  votes[id] = __ballot_sync(kAll, id % 3 == 0);
}

void masked_shuffle_kernel(int* data) {
  const int id = static_cast<int>(threadIdx.x);
  if (id < 8) data[id] = __shfl_xor_sync(0xFFu, id, 1);
}

void throwing_kernel(int) { throw std::runtime_error("from a kernel"); }

std::string message_of(void (*kernel)(int*), unsigned threads) {
  std::vector<int> data(threads, 0);
  try {
    launch(kernel, LaunchShape{1, threads}, nullptr, data.data());
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST_CASE("threads of a block exchange through shared memory across a barrier") {
  std::vector<int> data(96 * 3);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<int>(i);
  launch(reverse_kernel, LaunchShape{3, 96}, nullptr, data.data());
  for (std::size_t i = 0; i < data.size(); ++i)
    REQUIRE(data[i] == static_cast<int>(i / 96 * 96 + 95 - i % 96));
}

TEST_CASE("a barrier that a thread has left is reported") {
  const std::string message = message_of(early_exit_kernel, 32);
  CHECK(has(message, "divergent block 0: thread 0 waits at"));
  CHECK(has(message, "thread 5 has ended"));
}

TEST_CASE("threads at two different barriers are reported") {
  CHECK(has(message_of(two_barriers_kernel, 32), "thread 16 waits at"));
}

TEST_CASE("a shuffle without some lanes of its mask is reported") {
  CHECK(has(message_of(half_warp_shuffle_kernel, 32), "thread 16 has ended"));
  // A mask that names lanes beyond the block.
  CHECK(has(message_of(half_warp_shuffle_kernel, 16), "divergent"));
}

TEST_CASE("a barrier against a shuffle is reported") {
  CHECK(has(message_of(barrier_against_shuffle_kernel, 32), "thread 1 waits at"));
}

TEST_CASE("a grid runs after one that failed") {
  CHECK(message_of(early_exit_kernel, 64) != "");
  std::vector<int> data(96, 3);
  launch(reverse_kernel, LaunchShape{1, 96}, nullptr, data.data());
  CHECK(data == std::vector<int>(96, 3));
}

TEST_CASE("warps shuffle and vote among themselves") {
  std::vector<int> down(64), crossed(64);
  std::vector<unsigned> votes(64);
  launch(warp_kernel, LaunchShape{1, 64}, nullptr, down.data(), crossed.data(), votes.data());
  for (int i = 0; i < 64; ++i) {
    REQUIRE(down[i] == (i % 32 == 31 ? i : i + 1));
    REQUIRE(crossed[i] == (i ^ 16));
    REQUIRE((votes[i] >> (i % 32) & 1u) == (i % 3 == 0 ? 1u : 0u));
  }
}

TEST_CASE("a mask may name a part of the warp") {
  std::vector<int> data(32, -1);
  launch(masked_shuffle_kernel, LaunchShape{1, 32}, nullptr, data.data());
  for (int i = 0; i < 32; ++i) REQUIRE(data[i] == (i < 8 ? i ^ 1 : -1));
}

TEST_CASE("an exception of a kernel comes out of the launch") {
  CHECK_THROWS_WITH(launch(throwing_kernel, LaunchShape{2, 32}, nullptr, 0), "from a kernel");
}

TEST_CASE("a block of no or too many threads is refused") {
  CHECK_THROWS_AS(launch(reverse_kernel, LaunchShape{1, 0}, nullptr, nullptr), std::logic_error);
  CHECK_THROWS_AS(launch(reverse_kernel, LaunchShape{1, 1025}, nullptr, nullptr), std::logic_error);
}

}  // namespace
}  // namespace leeway::kernels::emulated
