#include "tests/bench/apply_bench.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <new>
#include <string>
#include <thread>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "common/half.h"
#include "common/result.h"
#include "kernels/lamb.h"
#include "kernels/optimizer.h"

namespace leeway::bench {
namespace {

using kernels::Optimizer;

// As large as the engine's tasks: far above a call's cost, far below a partition.
constexpr std::size_t kChunk = std::size_t{256} << 10;

// Anonymous memory at a chosen distance from a page boundary, touched.
template <typename T>
class Array {
 public:
  Array(std::size_t count, std::size_t stagger_bytes, T value)
      : bytes_(count * sizeof(T) + stagger_bytes) {
    map_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map_ == MAP_FAILED) throw std::bad_alloc();
    data_ = reinterpret_cast<T*>(static_cast<std::byte*>(map_) + stagger_bytes);
    std::fill_n(data_, count, value);
  }
  ~Array() { munmap(map_, bytes_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  T* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* map_;
  T* data_;
};

// Large mappings all start on a page, so equal indices would collide in the cache's sets and in the
// store buffer's 12-bit comparison; different odd distances keep them apart.
struct Arrays {
  explicit Arrays(std::size_t count)
      : master(count, 0, 0.5f),
        m(count, 4352, 0.25f),
        v(count, 20736, 0.25f),
        gradient(count, 65792, to_half(0.125f)),
        publish(count, 9536, Half{}),
        codes(GradientCodec{Codec::kFp8E4m3}.bytes(count), 30336, std::byte{0x30}) {}
  Array<float> master, m, v;
  Array<Half> gradient, publish;
  Array<std::byte> codes;  // a gradient with block scales, of any of those codecs
};

void triad(const Arrays& arrays, std::size_t begin, std::size_t end) {
  float* a = arrays.master.data();
  const float* b = arrays.m.data();
  const float* c = arrays.v.data();
  constexpr float kScale = 0.5f;
#ifdef __SSE2__
  const __m128 scale = _mm_set1_ps(kScale);
  for (std::size_t i = begin; i < end; i += 4)
    _mm_stream_ps(a + i, _mm_add_ps(_mm_loadu_ps(b + i), _mm_mul_ps(scale, _mm_loadu_ps(c + i))));
  _mm_sfence();
#else
  for (std::size_t i = begin; i < end; ++i) a[i] = b[i] + kScale * c[i];
#endif
}

kernels::Gradient gradient_at(Codec codec, const Arrays& arrays, std::size_t elements,
                              std::size_t at) {
  if (!has_block_scales(codec))
    return {.data = reinterpret_cast<const std::byte*>(arrays.gradient.data() + at),
            .codec = codec};
  return {.data = arrays.codes.data() + at,
          .codec = codec,
          .extra = arrays.codes.data() + elements + at / kScaleBlock};
}

// use(args) for each chunk.
template <typename Use>
void for_chunks(Codec codec, const Arrays& arrays, std::size_t elements, std::size_t begin,
                std::size_t end, const Use& use) {
  for (std::size_t at = begin; at < end; at += kChunk) {
    const kernels::Gradient gradient = gradient_at(codec, arrays, elements, at);
    kernels::UpdateArgs args;
    args.gradients = {&gradient, 1};
    args.elements = std::min(kChunk, end - at);
    args.master = arrays.master.data() + at;
    args.state[0] = arrays.m.data() + at;
    args.state[1] = arrays.v.data() + at;
    args.publish = reinterpret_cast<std::byte*>(arrays.publish.data() + at);
    args.step = 10;
    use(args);
  }
}

void apply(Optimizer optimizer, Codec codec, const Arrays& arrays, std::size_t elements,
           std::size_t begin, std::size_t end) {
  const kernels::Hyper hyper;
  if (optimizer != Optimizer::kLamb)
    return for_chunks(codec, arrays, elements, begin, end, [&](const kernels::UpdateArgs& args) {
      update(optimizer, hyper, {&args, 1});
    });
  // One tensor: all of the first pass comes before the second.
  NormSums sums;
  for_chunks(codec, arrays, elements, begin, end, [&](const kernels::UpdateArgs& args) {
    sums.add(kernels::lamb_moments(hyper, args, 0, args.elements));
  });
  for_chunks(codec, arrays, elements, begin, end, [&](const kernels::UpdateArgs& args) {
    kernels::lamb_step(hyper, args, 0, args.elements, sums);
  });
}

using RangeWork = std::function<void(std::size_t begin, std::size_t end)>;

// GB/s of `bytes_per_element` moved by `threads` over all elements, in equal contiguous ranges.
double measure(std::size_t elements, int threads, double bytes_per_element, const RangeWork& work) {
  const std::size_t chunks = elements / kChunk;
  const auto cut = [&](int i) { return chunks * i / threads * kChunk; };
  const auto start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([&, i] { work(cut(i), cut(i + 1)); });
    work(cut(0), cut(1));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(chunks * kChunk) * bytes_per_element / seconds.count() / 1e9;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

struct Subject {
  std::string name;
  Optimizer optimizer;
  Codec codec;
  double bytes_per_element;  // read and written: FP16 is 2, of each FP32 array 8
};
// The second pass of lamb reads three arrays and writes one; the first does not write the master.
constexpr double kLambSecondPass = 12;

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const OptimizerKind& kind : kOptimizerKinds)
    all.push_back({std::string(kind.name), kind.optimizer, Codec::kF16,
                   12.0 + 8.0 * kind.state_arrays +
                       (kind.optimizer == Optimizer::kLamb ? kLambSecondPass : 0.0)});
  for (const Codec codec : {Codec::kBf16, Codec::kFp8E4m3, Codec::kFp8E5m2, Codec::kInt8}) {
    const double gradient = static_cast<double>(GradientCodec{codec}.bytes(kChunk)) / kChunk;
    all.push_back({"momentum of " + std::string(to_string(codec)), Optimizer::kMomentum, codec,
                   18.0 + gradient});
  }
  return all;
}

constexpr double kTriadBytes = 12;

Case summarise(const Subject& subject, int threads, const std::vector<double>& values,
               const std::vector<double>& limits) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < values.size(); ++i) ratios.push_back(values[i] / limits[i]);
  Case result;
  result.name =
      subject.name + " " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  result.value = median(values);
  result.limit = median(limits);
  result.ratio = median(ratios);
  result.min = *std::min_element(values.begin(), values.end());
  result.max = *std::max_element(values.begin(), values.end());
  result.unit = "GB/s";
  return result;
}

void check_options(const ApplyOptions& options) {
  const auto sensible = [](int threads) { return threads >= 1 && threads <= 1024; };
  if (options.rounds < 1 || options.threads.empty() ||
      !std::all_of(options.threads.begin(), options.threads.end(), sensible))
    throw ConfigError("bench apply: needs at least one round, and 1 to 1024 threads");
  const int most = *std::max_element(options.threads.begin(), options.threads.end());
  const std::size_t least = kChunk * sizeof(float) * static_cast<std::size_t>(most);
  if (options.master_bytes < least)
    throw ConfigError("bench apply: the master needs at least " + std::to_string(least) +
                      " bytes for " + std::to_string(most) + " threads");
}

}  // namespace

std::vector<Case> run_apply(const ApplyOptions& options) {
  check_options(options);
  const std::size_t elements = options.master_bytes / sizeof(float);
  const Arrays arrays(elements);
  const std::vector<Subject> measured = subjects();
  std::vector<Case> cases;
  for (int threads : options.threads) {
    std::vector<double> limits;
    std::vector<std::vector<double>> values(measured.size());
    for (int round = 0; round < options.rounds; ++round) {
      limits.push_back(measure(elements, threads, kTriadBytes,
                               [&](std::size_t b, std::size_t e) { triad(arrays, b, e); }));
      for (std::size_t s = 0; s < measured.size(); ++s)
        values[s].push_back(measure(
            elements, threads, measured[s].bytes_per_element, [&](std::size_t b, std::size_t e) {
              apply(measured[s].optimizer, measured[s].codec, arrays, elements, b, e);
            }));
    }
    for (std::size_t s = 0; s < measured.size(); ++s)
      cases.push_back(summarise(measured[s], threads, values[s], limits));
  }
  return cases;
}

}  // namespace leeway::bench
