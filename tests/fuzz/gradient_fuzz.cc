// libFuzzer target: whatever a payload holds, decoding it in an update touches nothing beside the
// payload and the weights; of a payload that a server would take, every version of the kernels
// makes the same weights. The first bytes choose the codec, what top-k keeps, and the number of
// elements.
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "kernels/codec.h"
#include "kernels/cpu_kernels.h"
#include "kernels/optimizer.h"

namespace {

using namespace leeway;

std::vector<float> updated(const kernels::CpuKernels& version, const GradientCodec& codec,
                           const std::vector<std::byte>& payload, std::size_t elements) {
  std::vector<float> w(elements, 1), m(elements);
  const kernels::Gradient gradient = kernels::read_gradient(codec, payload.data(), elements, 0.5f);
  const kernels::UpdateArgs arguments{
      .gradients = {&gradient, 1}, .elements = elements, .master = w.data(), .state = {m.data()}};
  const kernels::UpdatePlan plan = kernels::plan_update(Optimizer::kMomentum, {}, arguments);
  version.update(&plan, 1);
  return w;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i]) &&
        !(std::isnan(a[i]) && std::isnan(b[i])))
      return false;
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 5) return 0;
  const GradientCodec codec{static_cast<Codec>(data[0] % 7 + 1), (data[1] + 1) / 256.0};
  const std::size_t elements = (data[2] + std::size_t{data[3]} * 256) % 3000;
  // As long as a server asks for, in a block of its own: what lies beside it is watched.
  std::vector<std::byte> payload(codec.bytes(elements));
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = std::byte{data[4 + i % (size - 4)]};
  const auto versions = kernels::available_cpu_kernels();
  const auto reference = updated(*versions.front(), codec, payload, elements);
  const bool taken = kernels::payload_error(codec, payload, elements).empty();
  for (const kernels::CpuKernels* version : versions)
    if (!same(updated(*version, codec, payload, elements), reference) && taken) std::abort();
  return 0;
}
