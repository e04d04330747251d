#include "kernels/lamb.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cast.h"
#include "kernels/cpu_kernels.h"
#include "kernels/sum_of_squares.h"
#include "tests/unit/kernels/executors.h"

namespace leeway::kernels::test {
namespace {

// One partition's arrays, with FP16 gradients of several workers.
struct Arrays {
  std::vector<float> master, m, v;
  std::vector<std::vector<Half>> payloads;
  std::vector<Gradient> gradients;
  std::vector<std::byte> published;
  Dtype publish_dtype = Dtype::kF16;
  std::uint64_t step = 3;
  bool decays = true;

  Arrays(std::int64_t size, std::size_t workers, std::uint32_t seed) {
    Random random(seed);
    master = random.floats(size);
    m = random.floats(size, -0.1f, 0.1f);
    v = random.floats(size, 0.0f, 0.01f);
    for (std::size_t n = 0; n < workers; ++n) payloads.push_back(random.halves(size));
    gradients.resize(workers);
    published.resize((master.size() + 1) * sizeof(float));
  }
  UpdateArgs args() {
    for (std::size_t n = 0; n < gradients.size(); ++n)
      gradients[n] = {reinterpret_cast<const std::byte*>(payloads[n].data()), Codec::kF16, 0.25f};
    UpdateArgs args;
    args.gradients = gradients;
    args.weight = 1.0f / static_cast<float>(gradients.size());
    args.decays = decays;
    args.elements = master.size();
    args.master = master.data();
    args.state[0] = m.data();
    args.state[1] = v.data();
    args.publish = published.data() + size_of(publish_dtype);
    args.publish_dtype = publish_dtype;
    args.step = step;
    return args;
  }
  friend bool operator==(const Arrays& a, const Arrays& b) {
    const auto same = [](const auto& x, const auto& y) {
      return x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0;
    };
    return same(a.master, b.master) && same(a.m, b.m) && same(a.v, b.v) &&
           same(a.published, b.published);
  }
};

struct Passes {
  std::vector<double> weights, changes;
  Arrays arrays;
};

// Both passes over [begin, end) by one table, at a ratio of 0.5.
Passes run_on(const CpuKernels& table, const Arrays& start, std::size_t begin, std::size_t end) {
  Hyper hyper;
  hyper.weight_decay = 0.01f;
  const std::size_t blocks = (end - begin + kNormBlock - 1) / kNormBlock;
  Passes passes{std::vector<double>(blocks), std::vector<double>(blocks), start};
  UpdatePlan plan = plan_update(Optimizer::kLamb, hyper, passes.arrays.args());
  table.lamb_moments(plan, begin, end, passes.weights.data(), passes.changes.data());
  plan.coefficients.learning_rate *= 0.5f;
  table.lamb_step(plan, begin, end);
  return passes;
}

NormSums sums_of(const Hyper& hyper, Arrays& arrays) {
  return lamb_moments(hyper, arrays.args(), 0, arrays.master.size());
}

}  // namespace

TEST_CASE("both passes of lamb give the same bits in every version") {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16})
    for (const std::int64_t size : {1, 7, 8, 33, 1023, 1024, 1025, 2053, 140005})
      for (const std::size_t workers : {1, 3}) {
        CAPTURE(size);
        CAPTURE(workers);
        CAPTURE(to_string(dtype));
        Arrays start(size, workers, 40);
        start.publish_dtype = dtype;
        // Also a tensor in the middle of a bundle.
        const auto whole = static_cast<std::size_t>(size);
        const std::size_t begin = whole > 1000 ? 32 : 0, end = whole > 1000 ? whole - 5 : whole;
        const Passes expected = run_on(scalar_kernels(), start, begin, end);
        for (const CpuKernels* table : available_cpu_kernels()) {
          CAPTURE(table->name);
          const Passes passes = run_on(*table, start, begin, end);
          CHECK(passes.weights == expected.weights);
          CHECK(passes.changes == expected.changes);
          CHECK(passes.arrays == expected.arrays);
        }
        CHECK_FALSE(expected.arrays == start);
      }
}

TEST_CASE("elements outside of the range are not touched") {
  const Arrays start(100, 1, 41);
  for (const CpuKernels* table : available_cpu_kernels()) {
    CAPTURE(table->name);
    const Passes passes = run_on(*table, start, 32, 77);
    for (std::size_t i = 0; i < 100; ++i) {
      const bool within = i >= 32 && i < 77;
      CHECK((passes.arrays.m[i] != start.m[i]) == within);
      CHECK((passes.arrays.master[i] != start.master[i]) == within);
    }
  }
}

TEST_CASE("1000 updates with lamb are the published formula in FP64, to 1e-6") {
  // A tensor of three partitions.
  constexpr std::size_t kSizes[] = {1024, 2048, 129};
  for (const float decay : {0.0f, 0.01f}) {
    CAPTURE(decay);
    Hyper hyper;
    hyper.learning_rate = 0.002f;
    hyper.weight_decay = decay;
    Random random(42);
    std::vector<Arrays> parts;
    std::vector<double> w, m, v;
    for (const std::size_t size : kSizes) {
      Arrays& part = parts.emplace_back(size, 2, 43);
      part.master = random.floats(static_cast<std::int64_t>(size), 1.0f, 2.0f);
      part.m.assign(size, 0.0f);
      part.v.assign(size, 0.0f);
      w.insert(w.end(), part.master.begin(), part.master.end());
    }
    m.resize(w.size());
    v.resize(w.size());
    double least = 1e9, most = 0;
    for (std::uint64_t step = 1; step <= 1000; ++step) {
      NormSums sums;
      std::vector<double> g;
      for (Arrays& part : parts) {
        part.step = step;
        for (auto& payload : part.payloads)
          for (Half& x : payload) x = to_half(random.uniform(-3.2f, 3.0f));
        for (std::size_t i = 0; i < part.master.size(); ++i)
          g.push_back((double{to_float(part.payloads[0][i])} + to_float(part.payloads[1][i])) / 8);
        sums.add(lamb_moments(hyper, part.args(), 0, part.master.size()));
      }
      for (Arrays& part : parts) lamb_step(hyper, part.args(), 0, part.master.size(), sums);

      const double b1 = hyper.beta1, b2 = hyper.beta2, t = static_cast<double>(step);
      std::vector<double> r(w.size());
      double of_weights = 0, of_changes = 0;
      for (std::size_t i = 0; i < w.size(); ++i) {
        m[i] = b1 * m[i] + (1 - b1) * g[i];
        v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
        r[i] = m[i] / (1 - std::pow(b1, t)) /
                   (std::sqrt(v[i] / (1 - std::pow(b2, t))) + double{hyper.epsilon}) +
               double{hyper.weight_decay} * w[i];
        of_weights += w[i] * w[i];
        of_changes += r[i] * r[i];
      }
      const double ratio = std::sqrt(of_weights) / std::sqrt(of_changes);
      least = std::min(least, ratio);
      most = std::max(most, ratio);
      for (std::size_t i = 0; i < w.size(); ++i) w[i] -= double{hyper.learning_rate} * ratio * r[i];
    }
    CHECK(most / least > 1.5);  // the ratio has something to say
    const auto distance = [&](const std::vector<double>& expected, std::vector<float> Arrays::*of) {
      double difference = 0, size = 0;
      std::size_t k = 0;
      for (const Arrays& part : parts)
        for (const float x : part.*of) {
          difference += (x - expected[k]) * (x - expected[k]);
          size += expected[k] * expected[k];
          ++k;
        }
      return std::sqrt(difference / size);
    };
    CHECK(distance(w, &Arrays::master) < 1e-6);
    CHECK(distance(m, &Arrays::m) < 1e-6);
    CHECK(distance(v, &Arrays::v) < 1e-6);
  }
}

TEST_CASE("however a tensor is cut between blocks, its update has the same bits") {
  const Hyper hyper;
  const Arrays start(5000, 2, 44);
  Arrays whole = start;
  const NormSums expected = sums_of(hyper, whole);
  lamb_step(hyper, whole.args(), 0, 5000, expected);
  for (const std::vector<std::size_t>& cuts :
       {std::vector<std::size_t>{0, 1024, 5000}, {0, 2048, 3072, 4096, 5000}}) {
    Arrays cut = start;
    NormSums sums;
    for (std::size_t n = cuts.size() - 1; n > 0; --n)  // in another order, too
      sums.add(lamb_moments(hyper, cut.args(), cuts[n - 1], cuts[n]));
    CHECK(sums == expected);
    for (std::size_t n = 1; n < cuts.size(); ++n)
      lamb_step(hyper, cut.args(), cuts[n - 1], cuts[n], sums);
    CHECK(cut == whole);
  }
}

TEST_CASE("the ratio is 1 where a norm is 0 or infinite") {
  const auto sums = [](double weights, double changes) {
    NormSums sums;
    sums.weights.add(weights);
    sums.changes.add(changes);
    return sums;
  };
  CHECK(trust_ratio(sums(9, 4)) == 1.5);
  CHECK(trust_ratio(sums(0, 4)) == 1);
  CHECK(trust_ratio(sums(9, 0)) == 1);
  CHECK(trust_ratio(sums(std::numeric_limits<double>::infinity(), 4)) == 1);
  CHECK(trust_ratio(sums(9, std::nan(""))) == 1);
}

TEST_CASE("a tensor of huge or tiny numbers has a norm") {
  const Hyper hyper;
  for (const float scale : {1e30f, 1e-30f}) {
    Arrays arrays(3000, 1, 45);
    for (float& w : arrays.master) w = scale;
    CHECK(std::sqrt(sums_of(hyper, arrays).weights.value()) ==
          doctest::Approx(scale * std::sqrt(3000.0)));
  }
}

}  // namespace leeway::kernels::test
