// AVX-512F: the vector that the templates of *_simd.h are written over, sixteen FP32 wide.
#include <immintrin.h>

#include "kernels/simd.h"
#include "kernels/simd_tables.h"

namespace leeway::kernels {
namespace {

struct Avx512 {
  static constexpr std::size_t kWidth = 16;
  using F = __m512;  // GCC gives it + - * /, each rounded by itself
  using Mask = __mmask16;

  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static void stream(float* p, F x) { _mm512_stream_ps(p, x); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F sqrt(F x) { return _mm512_sqrt_ps(x); }
  static F positive_part(F x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }
  static F max(F x, F running) { return _mm512_max_ps(x, running); }

  static Mask none() { return 0; }
  static Mask any_of(Mask a, Mask b) { return a | b; }
  static bool any(Mask mask) { return mask != 0; }
  static Mask not_less(F x, F y) { return _mm512_cmp_ps_mask(x, y, _CMP_NLT_UQ); }
  static Mask less(F x, F y) { return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ); }
  static F where(Mask mask, F yes) { return _mm512_maskz_mov_ps(mask, yes); }
  static F where_not(Mask mask, F no) { return _mm512_maskz_mov_ps(static_cast<Mask>(~mask), no); }
  static F absolute(F x) { return _mm512_abs_ps(x); }
  static F power_of_two(F n) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvttps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
  }

  using Packed = __m256i;  // sixteen 16-bit floats
  static Packed load_packed(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  static void store_packed(void* p, Packed x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
  static void stream_packed(void* p, Packed x) { _mm256_stream_si256(static_cast<__m256i*>(p), x); }
  static F from_half(Packed x) { return _mm512_cvtph_ps(x); }
  static Packed to_half(F x) {
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F from_bfloat16(Packed x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  }
  static Packed to_bfloat16(F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16);
    const Mask nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40)));
  }
  static void fence() { _mm_sfence(); }

  // Eight FP64: lane j is of elements j, j + 8, ...
  using Squares = __m512d;
  static Squares no_squares() { return _mm512_setzero_pd(); }
  static void add_squares(Squares& sums, F x) {
    const __m512d first = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    const __m512d second =
        _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
    sums = sums + first * first;
    sums = sums + second * second;
  }
  static void store_squares(double* to, Squares sums) { _mm512_storeu_pd(to, sums); }

  // Sixteen codes of one byte. E5M2 is the upper half of FP16; E4M3 shifted to FP16's fields is 2^8
  // too small, subnormals included.
  static __m128i load_codes(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
  }
  static F from_e5m2(const void* p) {
    return from_half(_mm256_slli_epi16(_mm256_cvtepu8_epi16(load_codes(p)), 8));
  }
  static F from_e4m3(const void* p) {
    const __m256i codes = _mm256_cvtepi8_epi16(load_codes(p));
    const __m256i sign = _mm256_and_si256(codes, _mm256_set1_epi16(static_cast<short>(0x8000)));
    const __m256i magnitude =
        _mm256_slli_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(0x7F)), 7);
    return from_half(_mm256_or_si256(sign, magnitude)) * set(256.0f);
  }
  static F from_int8(const void* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_codes(p)));
  }
  // The low byte of each.
  static void store_codes(void* p, __m512i x) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
  }
  template <int kMantissa, int kBias>
  static void store_fp8(void* p, F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
    const __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(magnitude, 23 - kMantissa), _mm512_set1_epi32(1));
    const __m512i half = _mm512_set1_epi32((1 << (22 - kMantissa)) - 1);
    const __m512i normal = _mm512_sub_epi32(
        _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(magnitude, half), odd), 23 - kMantissa),
        _mm512_set1_epi32((127 - kBias) << kMantissa));
    const __m512i anchor = _mm512_set1_epi32((151 - kBias - kMantissa) << 23);
    const __m512i subnormal = _mm512_sub_epi32(
        _mm512_castps_si512(_mm512_castsi512_ps(magnitude) + _mm512_castsi512_ps(anchor)), anchor);
    const Mask small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32((128 - kBias) << 23));
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    store_codes(p, _mm512_or_si512(_mm512_mask_mov_epi32(normal, small, subnormal), sign));
  }
  static void store_int8(void* p, F x) { store_codes(p, _mm512_cvtps_epi32(x)); }
  static float largest(F x) { return _mm512_reduce_max_ps(x); }
  static F clamp(F x, F low, F high) { return _mm512_min_ps(_mm512_max_ps(x, low), high); }
};

}  // namespace

const CpuKernels& avx512_kernels() noexcept {
  static constexpr CpuKernels kTable = simd_table<Avx512>("AVX-512");
  return kTable;
}

}  // namespace leeway::kernels
