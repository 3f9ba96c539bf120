// 8 lanes: AVX2, FMA, F16C, and what the level adds.

#include "kernels/simd_x86-inl.h"

using Vf = __m256;
using Vi = int32_t __attribute__((vector_size(32)));
constexpr int kLanes = 8;
constexpr uint32_t kAllLanes = 0xffu;

LEGATO_INLINE __m256i lane_numbers() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
LEGATO_INLINE __m256i first_lanes(int n) { return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane_numbers()); }

LEGATO_INLINE Vf splat(float x) { return _mm256_set1_ps(x); }
LEGATO_INLINE Vf load(const float* p) { return _mm256_loadu_ps(p); }
LEGATO_INLINE Vf load_n(const float* p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
LEGATO_INLINE void store(float* p, Vf v) { _mm256_storeu_ps(p, v); }
LEGATO_INLINE void store_n(float* p, Vf v, int n) { _mm256_maskstore_ps(p, first_lanes(n), v); }

// a * b + c, rounded once.
LEGATO_INLINE Vf fma(Vf a, Vf b, Vf c) { return _mm256_fmadd_ps(a, b, c); }
// b where either is a NaN.
LEGATO_INLINE Vf min(Vf a, Vf b) { return _mm256_min_ps(a, b); }
LEGATO_INLINE Vf max(Vf a, Vf b) { return _mm256_max_ps(a, b); }
// 1 / v, for v in [1, 16), within 2 ulp.
LEGATO_INLINE Vf inverse(Vf v) { return splat(1.0f) / v; }
LEGATO_INLINE Vf abs(Vf v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }
LEGATO_INLINE Vf round_even(Vf v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
LEGATO_INLINE Vf pow2(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
// The nearest whole numbers, even on a tie, for |v| < 2^22.
LEGATO_INLINE Vi to_int(Vf v) { return reinterpret_cast<Vi>(_mm256_cvtps_epi32(v)); }
// v * 2^n for whole n in [-250, 250]: in two factors, since one alone may leave the range of exponents.
LEGATO_INLINE Vf scale_pow2(Vf v, Vf n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  return v * pow2(half) * pow2(_mm256_sub_epi32(whole, half));
}

// Lane bits, false where either is a NaN.
LEGATO_INLINE uint32_t less_bits(Vf a, Vf b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_LT_OQ)));
}
// Lanes of a where the bit is set, of b elsewhere.
LEGATO_INLINE Vf select(uint32_t bits, Vf a, Vf b) {
  const __m256i lane_bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i chosen = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane_bit);
  return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpeq_epi32(chosen, lane_bit)));
}

LEGATO_INLINE Vf load_bf16(const uint16_t* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
LEGATO_INLINE Vf load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// 8 pairs of bf16: the first of each, the second of each.
struct VfPair {
  Vf first, second;
};
LEGATO_INLINE VfPair load_bf16_pairs(const uint8_t* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(raw, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}

// Round to nearest even; a NaN stays one.
LEGATO_INLINE __m128i to_bf16(Vf v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i result = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
}
LEGATO_INLINE Vf rounded_to_bf16(Vf v) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(to_bf16(v)), 16));
}
LEGATO_INLINE void store_bf16(uint16_t* p, Vf v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), to_bf16(v)); }
LEGATO_INLINE void store_bf16_n(uint16_t* p, Vf v, int n) {
  alignas(16) uint16_t lanes[kLanes];
  store_bf16(lanes, v);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}

LEGATO_INLINE Vi bf16_bits(Vf v) { return reinterpret_cast<Vi>(_mm256_cvtepu16_epi32(to_bf16(v))); }

// The low byte of each lane.
LEGATO_INLINE void store_bytes(uint8_t* p, Vi v) {
  const __m256i low = reinterpret_cast<__m256i>(v & 255);
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}
// v[i] to p[2 i] or p[4 i]. What lies between is not touched: other threads may write it.
LEGATO_INLINE void store_every_second(uint16_t* p, Vi v) {
  for (int i = 0; i < kLanes; ++i) p[2 * i] = static_cast<uint16_t>(v[i]);
}
LEGATO_INLINE void store_every_fourth(uint8_t* p, Vi v) {
  for (int i = 0; i < kLanes; ++i) p[4 * i] = static_cast<uint8_t>(v[i]);
}
