// AVX2 with F16C: the vector that the templates of *_simd.h are written over, eight FP32 wide.
#include <immintrin.h>

#include "kernels/simd.h"
#include "kernels/simd_tables.h"

namespace leeway::kernels {
namespace {

struct Avx2 {
  static constexpr std::size_t kWidth = 8;
  using F = __m256;  // GCC gives it + - * /, each rounded by itself
  using Mask = __m256;

  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static void stream(float* p, F x) { _mm256_stream_ps(p, x); }
  static F set(float x) { return _mm256_set1_ps(x); }
  static F sqrt(F x) { return _mm256_sqrt_ps(x); }
  // max(0, x), NaN and -0 of x kept.
  static F positive_part(F x) { return _mm256_max_ps(_mm256_setzero_ps(), x); }
  static F max(F x, F running) { return _mm256_max_ps(x, running); }

  static Mask none() { return _mm256_setzero_ps(); }
  static Mask any_of(Mask a, Mask b) { return _mm256_or_ps(a, b); }
  static bool any(Mask mask) { return _mm256_movemask_ps(mask) != 0; }
  static Mask not_less(F x, F y) { return _mm256_cmp_ps(x, y, _CMP_NLT_UQ); }
  static Mask less(F x, F y) { return _mm256_cmp_ps(x, y, _CMP_LT_OQ); }
  static F where(Mask mask, F yes) { return _mm256_and_ps(mask, yes); }
  static F where_not(Mask mask, F no) { return _mm256_andnot_ps(mask, no); }
  static F absolute(F x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
  // 2^n for integral n in [-126, 127].
  static F power_of_two(F n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }

  using Packed = __m128i;  // eight 16-bit floats
  static Packed load_packed(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
  }
  static void store_packed(void* p, Packed x) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }
  static void stream_packed(void* p, Packed x) { _mm_stream_si128(static_cast<__m128i*>(p), x); }
  static F from_half(Packed x) { return _mm256_cvtph_ps(x); }
  static Packed to_half(F x) {
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F from_bfloat16(Packed x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
  }
  static Packed to_bfloat16(F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i halves = _mm256_blendv_epi8(rounded, quiet, nan);
    const __m256i packed = _mm256_permute4x64_epi64(
        _mm256_packus_epi32(halves, _mm256_setzero_si256()), _MM_SHUFFLE(3, 1, 2, 0));
    return _mm256_castsi256_si128(packed);
  }
  static void fence() { _mm_sfence(); }

  // Eight FP64: lane j is of elements j, j + 8, ...
  struct Squares {
    __m256d low, high;
  };
  static Squares no_squares() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
  static void add_squares(Squares& sums, F x) {
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    sums.low = sums.low + low * low;
    sums.high = sums.high + high * high;
  }
  static void store_squares(double* to, const Squares& sums) {
    _mm256_storeu_pd(to, sums.low);
    _mm256_storeu_pd(to + 4, sums.high);
  }

  // Eight codes of one byte. E5M2 is the upper half of FP16; E4M3 shifted to FP16's fields is 2^8
  // too small, subnormals included.
  static __m128i load_codes(const void* p) {
    return _mm_loadl_epi64(static_cast<const __m128i*>(p));
  }
  static F from_e5m2(const void* p) {
    return from_half(_mm_slli_epi16(_mm_cvtepu8_epi16(load_codes(p)), 8));
  }
  static F from_e4m3(const void* p) {
    const __m128i codes = _mm_cvtepi8_epi16(load_codes(p));
    const __m128i sign = _mm_and_si128(codes, _mm_set1_epi16(static_cast<short>(0x8000)));
    const __m128i magnitude = _mm_slli_epi16(_mm_and_si128(codes, _mm_set1_epi16(0x7F)), 7);
    return from_half(_mm_or_si128(sign, magnitude)) * set(256.0f);
  }
  static F from_int8(const void* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_codes(p)));
  }
  // The low byte of each.
  static void store_codes(void* p, __m256i x) {
    const __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xFF));
    const __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packus_epi16(words, words));
  }
  template <int kMantissa, int kBias>
  static void store_fp8(void* p, F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
    const __m256i odd =
        _mm256_and_si256(_mm256_srli_epi32(magnitude, 23 - kMantissa), _mm256_set1_epi32(1));
    const __m256i half = _mm256_set1_epi32((1 << (22 - kMantissa)) - 1);
    const __m256i normal = _mm256_sub_epi32(
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(magnitude, half), odd), 23 - kMantissa),
        _mm256_set1_epi32((127 - kBias) << kMantissa));
    const __m256i anchor = _mm256_set1_epi32((151 - kBias - kMantissa) << 23);
    const __m256i subnormal = _mm256_sub_epi32(
        _mm256_castps_si256(_mm256_castsi256_ps(magnitude) + _mm256_castsi256_ps(anchor)), anchor);
    const __m256i small = _mm256_cmpgt_epi32(_mm256_set1_epi32((128 - kBias) << 23), magnitude);
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
    store_codes(p, _mm256_or_si256(_mm256_blendv_epi8(normal, subnormal, small), sign));
  }
  static void store_int8(void* p, F x) { store_codes(p, _mm256_cvtps_epi32(x)); }
  static float largest(F x) {
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_shuffle_ps(most, most, 1)));
  }
  static F clamp(F x, F low, F high) { return _mm256_min_ps(_mm256_max_ps(x, low), high); }
};

}  // namespace

const CpuKernels& avx2_kernels() noexcept {
  static constexpr CpuKernels kTable = simd_table<Avx2>("AVX2");
  return kTable;
}

}  // namespace leeway::kernels
