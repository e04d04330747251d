#include "kernels/optimizer.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "kernels/cast.h"
#include "kernels/cpu_kernels.h"
#include "tests/unit/kernels/executors.h"

namespace leeway::kernels::test {
namespace {

const std::vector<Optimizer> kOptimizers = [] {
  std::vector<Optimizer> all;
  for (const OptimizerKind& kind : kOptimizerKinds) all.push_back(kind.optimizer);
  return all;
}();

// Host arrays of one partition and of the gradients that are to be applied.
struct Problem {
  Hyper hyper;
  float weight = 1.0f;
  std::uint64_t step = 1;
  Dtype publish_dtype = Dtype::kF16;
  std::vector<float> master, m, v;
  std::vector<std::vector<std::byte>> payloads;
  std::vector<Gradient> gradients;
  std::vector<std::byte> published;  // one element more at the front: its address is unaligned
  std::vector<std::byte> then;       // of every second gradient, when not empty

  Problem(std::int64_t size, const std::vector<Dtype>& dtypes, std::uint32_t seed) {
    Random random(seed);
    master = random.floats(size);
    m = random.floats(size, -0.1f, 0.1f);
    v = random.floats(size, 0.0f, 0.01f);
    for (Dtype dtype : dtypes) {
      const std::vector<float> values = random.floats(size, -500.0f, 500.0f);
      payloads.emplace_back(values.size() * size_of(dtype));
      convert(values, dtype, payloads.back().data());
      gradients.push_back(
          {payloads.back().data(), codec_of(dtype), 1.0f / random.uniform(100.0f, 2000.0f)});
    }
    weight = 1.0f / static_cast<float>(dtypes.size());
    published.resize((master.size() + 1) * sizeof(float));
  }

  // Of this object's arrays, also when it is a copy.
  UpdateArgs args() {
    for (std::size_t n = 0; n < gradients.size(); ++n) {
      gradients[n].data = payloads[n].data();
      gradients[n].then = n % 2 == 0 && !then.empty() ? then.data() : nullptr;
    }
    UpdateArgs args;
    args.gradients = gradients;
    args.weight = weight;
    args.elements = master.size();
    args.master = master.data();
    args.state[0] = m.data();
    args.state[1] = v.data();
    args.publish = published.data() + size_of(publish_dtype);
    args.publish_dtype = publish_dtype;
    args.step = step;
    return args;
  }
};

void update_once(Optimizer optimizer, const Hyper& hyper, const UpdateArgs& args) {
  update(optimizer, hyper, {&args, 1});
}

bool same_bits(const Problem& a, const Problem& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.size() == y.size() &&
           (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0);
  };
  return same(a.master, b.master) && same(a.m, b.m) && same(a.v, b.v) &&
         same(a.published, b.published);
}

void run_on(const CpuKernels& table, const UpdatePlan& plan) { table.update(&plan, 1); }

void run_on(const CpuKernels& table, Optimizer optimizer, Problem& problem) {
  run_on(table, plan_update(optimizer, problem.hyper, problem.args()));
}

void run_on(DeviceBackend& device, Optimizer optimizer, Problem& problem) {
  const Buffer master = to_device(device, problem.master);
  const Buffer m = to_device(device, problem.m);
  const Buffer v = to_device(device, problem.v);
  const Buffer published = to_device(device, problem.published);
  const Buffer then = to_device(device, problem.then);
  std::vector<Buffer> payloads;
  std::vector<Gradient> gradients = problem.gradients;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    payloads.push_back(to_device(device, problem.payloads[i]));
    gradients[i].data = payloads.back().as<std::byte>();
  }
  UpdateArgs args = problem.args();
  for (std::size_t i = 0; i < gradients.size(); ++i)
    gradients[i].then = args.gradients[i].then != nullptr ? then.as<std::byte>() : nullptr;
  args.gradients = gradients;
  args.master = master.as<float>();
  args.state[0] = m.as<float>();
  args.state[1] = v.as<float>();
  args.publish = published.as<std::byte>(size_of(args.publish_dtype));
  device.kernels().update(device.stream(), plan_update(optimizer, problem.hyper, args));
  problem.master = to_host<float>(device, master, problem.master.size());
  problem.m = to_host<float>(device, m, problem.m.size());
  problem.v = to_host<float>(device, v, problem.v.size());
  problem.published = to_host<std::byte>(device, published, problem.published.size());
}

// All executors against the scalar reference, bit by bit.
void check_same_bits(Optimizer optimizer, const Problem& start) {
  Problem expected = start;
  run_on(scalar_kernels(), optimizer, expected);
  for (const CpuKernels* table : available_cpu_kernels()) {
    CAPTURE(table->name);
    Problem problem = start;
    run_on(*table, optimizer, problem);
    CHECK(same_bits(problem, expected));
  }
  for (DeviceBackend* device : device_backends()) {
    CAPTURE(device->name());
    Problem problem = start;
    run_on(*device, optimizer, problem);
    CHECK(same_bits(problem, expected));
  }
}

// The published formulas in FP64, one element: the other half of kernels/optimizer.h.
struct Fp64 {
  double w = 0, m = 0, v = 0;

  // `g` is the mean gradient.
  void step(Optimizer optimizer, const Hyper& h, double g, std::uint64_t step) {
    const double rate = h.learning_rate, mu = h.momentum, b1 = h.beta1, b2 = h.beta2;
    const bool decoupled = optimizer == Optimizer::kAdamW || optimizer == Optimizer::kLamb;
    if (!decoupled) g += static_cast<double>(h.weight_decay) * w;
    switch (optimizer) {
      case Optimizer::kSgd:
        w -= rate * g;
        return;
      case Optimizer::kMomentum:
        m = mu * m + g;
        w -= rate * m;
        return;
      case Optimizer::kNesterov: {
        // At the look-ahead point, where the gradient is taken: theta = w + rate * mu * m.
        const double theta = w + rate * mu * m;
        m = mu * m + g;
        w = theta - rate * m - rate * mu * m;
        return;
      }
      case Optimizer::kDelayedNesterov: {
        const double period = h.momentum_period;
        v += g;
        if (step % h.momentum_period == 0) {
          m = mu * m + v / period;
          v = 0;
          w -= rate * mu * m;
        }
        w -= rate * g / period;
        return;
      }
      case Optimizer::kAdagrad:
        m += g * g;
        w -= rate * g / (std::sqrt(m) + h.epsilon);
        return;
      case Optimizer::kLamb:  // with a trust ratio of 1; lamb_test.cc has the rest
      case Optimizer::kAdamW:
        w *= 1 - rate * h.weight_decay;
        [[fallthrough]];
      case Optimizer::kAdam: {
        m = b1 * m + (1 - b1) * g;
        v = b2 * v + (1 - b2) * g * g;
        const double m_hat = m / (1 - std::pow(b1, static_cast<double>(step)));
        const double v_hat = v / (1 - std::pow(b2, static_cast<double>(step)));
        w -= rate * m_hat / (std::sqrt(v_hat) + h.epsilon);
        return;
      }
    }
  }
};

// |a - b| / |b| over all elements.
double distance(const std::vector<float>& a, const std::vector<Fp64>& b, double Fp64::*of) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i].*of) * (a[i] - b[i].*of);
    size += b[i].*of * b[i].*of;
  }
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

TEST_CASE("N6: updates of every size give the same bits in every version") {
  for (Optimizer optimizer : kOptimizers) {
    CAPTURE(kind_of(optimizer).name);
    for (std::int64_t size : kSizes) {
      CAPTURE(size);
      check_same_bits(optimizer, Problem(size, {Dtype::kF16}, 3));
    }
  }
}

TEST_CASE("gradients of every dtype, several of them, give the same bits in every version") {
  for (Optimizer optimizer : kOptimizers) {
    CAPTURE(kind_of(optimizer).name);
    check_same_bits(optimizer, Problem(1031, {Dtype::kF16, Dtype::kF16, Dtype::kF16}, 4));
    check_same_bits(optimizer, Problem(1031, {Dtype::kF32, Dtype::kBf16, Dtype::kF16}, 5));
    check_same_bits(optimizer, Problem(77, std::vector<Dtype>(17, Dtype::kBf16), 6));
  }
}

TEST_CASE("a gradient of -0 counts as +0 in every version") {
  Problem problem(33, {Dtype::kF16}, 13);
  for (auto* half = reinterpret_cast<Half*>(problem.payloads[0].data());
       half != reinterpret_cast<Half*>(problem.payloads[0].data()) + 33; ++half)
    *half = to_half(-0.0f);
  problem.m.assign(33, -0.0f);
  check_same_bits(Optimizer::kMomentum, problem);
  run_on(scalar_kernels(), Optimizer::kMomentum, problem);
  CHECK_FALSE(std::signbit(problem.m[0]));
}

TEST_CASE("weight decay, later steps and every publish dtype give the same bits") {
  for (Optimizer optimizer : kOptimizers) {
    CAPTURE(kind_of(optimizer).name);
    for (Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
      CAPTURE(to_string(dtype));
      Problem problem(517, {Dtype::kF16, Dtype::kF32}, 7);
      problem.hyper.weight_decay = 0.01f;
      problem.publish_dtype = dtype;
      problem.step = 1000;
      check_same_bits(optimizer, problem);
    }
  }
}

TEST_CASE("delay compensation gives the same bits in every version") {
  for (Optimizer optimizer : kOptimizers) {
    CAPTURE(kind_of(optimizer).name);
    for (Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16})
      for (std::int64_t size : {1, 33, 1024, 1500}) {
        CAPTURE(size);
        Problem problem(size, {Dtype::kF16, Dtype::kF16, Dtype::kBf16}, 17);
        problem.publish_dtype = dtype;
        problem.hyper.delay_compensation = 0.3f;
        problem.then.resize(problem.master.size() * size_of(dtype));
        convert(Random(18).floats(size), dtype, problem.then.data());
        check_same_bits(optimizer, problem);
        problem.gradients.resize(1);
        check_same_bits(optimizer, problem);
      }
  }
}

TEST_CASE("1000 updates with delay compensation are Zheng's formula in FP64, to 1e-6") {
  // Two workers, each two updates behind.
  constexpr std::size_t kElements = 129;
  for (Optimizer optimizer : kOptimizers) {
    CAPTURE(kind_of(optimizer).name);
    Random random(21);
    Problem problem(kElements, {Dtype::kF16}, 21);
    problem.publish_dtype = Dtype::kF32;
    problem.hyper.learning_rate = 0.002f;
    problem.hyper.delay_compensation = 0.5f;
    problem.master = random.floats(kElements, 1.0f, 2.0f);
    problem.m.assign(kElements, 0.0f);
    problem.v.assign(kElements, 0.0f);
    std::vector<Fp64> expected(kElements);
    for (std::size_t i = 0; i < kElements; ++i) expected[i].w = problem.master[i];
    const auto bytes_of = [](const std::vector<float>& values) {
      const auto bytes = std::as_bytes(std::span(values));
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    std::vector<float> weights[2] = {problem.master, problem.master};
    double effect = 0;
    for (std::uint64_t step = 1; step <= 1000; ++step) {
      std::vector<float>& then = weights[step % 2];
      problem.then = bytes_of(then);
      problem.gradients[0].inverse_scale = 1.0f / 256;
      auto* to = reinterpret_cast<Half*>(problem.payloads[0].data());
      problem.step = step;
      for (std::size_t i = 0; i < kElements; ++i) {
        to[i] = to_half(random.uniform(-800.0f, 768.0f));
        const double g = to_float(to[i]) / 256.0;
        const double lambda = problem.hyper.delay_compensation;
        const double extra = lambda * g * g * (expected[i].w - then[i]);
        effect = std::max(effect, std::abs(extra));
        expected[i].step(optimizer, problem.hyper, g + extra, step);
      }
      update_once(optimizer, problem.hyper, problem.args());
      then = problem.master;
    }
    CHECK(effect > 1e-3);
    CHECK(distance(problem.master, expected, &Fp64::w) < 1e-6);
  }
}

TEST_CASE("rate multiplies the learning rate, and decays = false takes weight decay away") {
  for (Optimizer optimizer : kOptimizers) {
    CAPTURE(kind_of(optimizer).name);
    Problem expected(100, {Dtype::kF16}, 19);
    Problem problem = expected;
    expected.hyper.learning_rate = 0.25f;
    problem.hyper.learning_rate = 0.5f;
    problem.hyper.weight_decay = 0.1f;
    update_once(optimizer, expected.hyper, expected.args());
    UpdateArgs args = problem.args();
    args.rate = 0.5f;
    args.decays = false;
    update_once(optimizer, problem.hyper, args);
    CHECK(same_bits(problem, expected));
    Problem decayed = problem;
    update_once(optimizer, problem.hyper, problem.args());
    CHECK_FALSE(same_bits(problem, decayed));
  }
}

TEST_CASE("arrays large enough to be streamed give the same bits") {
  const std::pair<Optimizer, Dtype> variants[] = {{Optimizer::kSgd, Dtype::kF32},
                                                  {Optimizer::kMomentum, Dtype::kF16},
                                                  {Optimizer::kAdam, Dtype::kBf16}};
  for (const auto& [optimizer, dtype] : variants) {
    constexpr std::size_t kStreamed = std::size_t{256} << 10;  // bytes, simd_tail.h
    Problem start(static_cast<std::int64_t>(kStreamed / size_of(dtype)) + 5, {Dtype::kF16}, 8);
    start.publish_dtype = dtype;
    Problem expected = start;
    run_on(scalar_kernels(), optimizer, expected);
    for (const CpuKernels* table : available_cpu_kernels()) {
      CAPTURE(table->name);
      Problem problem = start;
      run_on(*table, optimizer, problem);
      CHECK(same_bits(problem, expected));
    }
  }
}

TEST_CASE("a range updated in two parts gives the bits of one") {
  for (Optimizer optimizer : kOptimizers) {
    Problem whole(1500, {Dtype::kF16}, 9);
    Problem parts = whole;
    update_once(optimizer, whole.hyper, whole.args());
    constexpr std::size_t kCut = 613;
    UpdateArgs first = parts.args();
    first.elements = kCut;
    update_once(optimizer, parts.hyper, first);
    UpdateArgs second = parts.args();
    Gradient rest = parts.gradients[0];
    rest.data += kCut * sizeof(Half);
    second.gradients = {&rest, 1};
    second.elements -= kCut;
    second.master += kCut;
    second.state[0] += kCut;
    second.state[1] += kCut;
    second.publish += kCut * size_of(second.publish_dtype);
    update_once(optimizer, parts.hyper, second);
    CHECK(same_bits(whole, parts));
  }
}

TEST_CASE("several updates in one pass give the bits of as many passes") {
  for (Optimizer optimizer : kOptimizers)
    for (const std::int64_t size : {5, 1500, 140000}) {
      CAPTURE(size);
      Problem together(size, {Dtype::kF16, Dtype::kF16, Dtype::kF16}, 13);
      together.hyper.weight_decay = 0.01f;
      for (const CpuKernels* table : available_cpu_kernels()) {
        CAPTURE(table->name);
        Problem apart = together, one_pass = together;
        const auto plans = [&](Problem& problem) {
          std::vector<UpdatePlan> made;
          const UpdateArgs args = problem.args();
          for (std::size_t n = 0; n < args.gradients.size(); ++n) {
            UpdateArgs one = args;
            one.gradients = args.gradients.subspan(n, 1);
            one.step = 4 + n;
            made.push_back(plan_update(optimizer, problem.hyper, one));
          }
          return made;
        };
        for (const UpdatePlan& plan : plans(apart)) run_on(*table, plan);
        const std::vector<UpdatePlan> all = plans(one_pass);
        table->update(all.data(), all.size());
        CHECK(same_bits(apart, one_pass));
      }
    }
}

TEST_CASE("1000 updates are the published formula in FP64, to 1e-6") {
  constexpr std::int64_t kElements = 257;
  for (Optimizer optimizer : kOptimizers)
    for (const float decay : {0.0f, 0.01f}) {
      CAPTURE(kind_of(optimizer).name);
      CAPTURE(decay);
      Random random(20);
      Problem problem(kElements, {Dtype::kF16, Dtype::kF16}, 20);
      problem.hyper.weight_decay = decay;
      problem.hyper.learning_rate = 0.002f;
      problem.master = random.floats(kElements, 1.0f, 2.0f);
      problem.m.assign(kElements, 0.0f);
      problem.v.assign(kElements, 0.0f);
      std::vector<Fp64> expected(kElements);
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i].w = problem.master[i];
      for (std::uint64_t step = 1; step <= 1000; ++step) {
        std::vector<double> mean(kElements, 0.0);
        for (std::size_t n = 0; n < problem.gradients.size(); ++n) {
          problem.gradients[n].inverse_scale = 1.0f / 1024;
          auto* to = reinterpret_cast<Half*>(problem.payloads[n].data());
          for (std::size_t i = 0; i < expected.size(); ++i) {
            to[i] = to_half(random.uniform(-800.0f, 768.0f));
            mean[i] += to_float(to[i]) / 1024.0 / 2;
          }
        }
        problem.step = step;
        update_once(optimizer, problem.hyper, problem.args());
        for (std::size_t i = 0; i < expected.size(); ++i)
          expected[i].step(optimizer, problem.hyper, mean[i], step);
      }
      CHECK(distance(problem.master, expected, &Fp64::w) < 1e-6);
      if (state_arrays(optimizer) > 0) CHECK(distance(problem.m, expected, &Fp64::m) < 1e-6);
      if (state_arrays(optimizer) > 1) CHECK(distance(problem.v, expected, &Fp64::v) < 1e-6);
    }
}

TEST_CASE("N delayed updates leave the weights of one Nesterov update with their mean") {
  Hyper hyper;
  hyper.momentum_period = 3;
  hyper.learning_rate = 0.7f;
  Fp64 delayed{.w = 1, .m = 0.25}, at_once = delayed;
  for (std::uint64_t step = 1; step <= 3; ++step)
    delayed.step(Optimizer::kDelayedNesterov, hyper, static_cast<double>(step), step);
  at_once.step(Optimizer::kNesterov, hyper, 2, 1);
  CHECK(delayed.w == doctest::Approx(at_once.w));
  CHECK(delayed.m == doctest::Approx(at_once.m));
}

TEST_CASE("state that an optimizer does not have is never touched") {
  Problem problem(100, {Dtype::kF16}, 11);
  const std::vector<float> m = problem.m;
  const std::vector<float> v = problem.v;
  UpdateArgs args = problem.args();
  args.state[0] = nullptr;
  args.state[1] = nullptr;
  args.publish = nullptr;
  const std::vector<float> before = problem.master;
  for (const CpuKernels* table : available_cpu_kernels())
    run_on(*table, plan_update(Optimizer::kSgd, problem.hyper, args));
  CHECK(problem.master != before);
  CHECK(problem.m == m);
  run_on(scalar_kernels(), Optimizer::kMomentum, problem);
  CHECK(problem.v == v);
}

TEST_CASE("N5: 4096 pushes of 1 at learning rate 1, and two of 60000, are exact in the master") {
  for (const CpuKernels* table : available_cpu_kernels()) {
    CAPTURE(table->name);
    Hyper hyper;
    hyper.learning_rate = 1.0f;
    std::vector<float> master(33, 0.0f);
    std::vector<Half> published(33);
    UpdateArgs args;
    args.elements = master.size();
    args.master = master.data();
    args.publish = reinterpret_cast<std::byte*>(published.data());
    const std::vector<Half> ones(33, to_half(1.0f));
    const Gradient one{reinterpret_cast<const std::byte*>(ones.data()), Codec::kF16, 1.0f};
    args.gradients = {&one, 1};
    for (int i = 0; i < 4096; ++i) run_on(*table, plan_update(Optimizer::kSgd, hyper, args));
    CHECK(master == std::vector<float>(33, -4096.0f));
    const std::vector<Half> large(33, to_half(60000.0f));
    const Gradient both[] = {{reinterpret_cast<const std::byte*>(large.data()), Codec::kF16, 1.0f},
                             {reinterpret_cast<const std::byte*>(large.data()), Codec::kF16, 1.0f}};
    args.gradients = both;
    run_on(*table, plan_update(Optimizer::kSgd, hyper, args));
    CHECK(master == std::vector<float>(33, -124096.0f));
  }
}

TEST_CASE("the devices refuse more gradients than a launch takes") {
  for (DeviceBackend* device : device_backends()) {
    Problem most(3, std::vector<Dtype>(kMaxDeviceGradients, Dtype::kF16), 12);
    CHECK_NOTHROW(run_on(*device, Optimizer::kSgd, most));
    Problem more(3, std::vector<Dtype>(kMaxDeviceGradients + 1, Dtype::kF16), 12);
    CHECK_THROWS_AS(run_on(*device, Optimizer::kSgd, more), std::invalid_argument);
  }
}

}  // namespace
}  // namespace leeway::kernels::test
