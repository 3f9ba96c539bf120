// 16 lanes: AVX-512 F, BW, VL, DQ, and what the level adds.

#include "kernels/simd_x86-inl.h"

using Vf = __m512;
using Vi = int32_t __attribute__((vector_size(64)));
constexpr int kLanes = 16;
constexpr uint32_t kAllLanes = 0xffffu;

LEGATO_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

LEGATO_INLINE Vf splat(float x) { return _mm512_set1_ps(x); }
LEGATO_INLINE Vf load(const float* p) { return _mm512_loadu_ps(p); }
LEGATO_INLINE Vf load_n(const float* p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
LEGATO_INLINE void store(float* p, Vf v) { _mm512_storeu_ps(p, v); }
LEGATO_INLINE void store_n(float* p, Vf v, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }

// a * b + c, rounded once.
LEGATO_INLINE Vf fma(Vf a, Vf b, Vf c) { return _mm512_fmadd_ps(a, b, c); }
// b where either is a NaN.
LEGATO_INLINE Vf min(Vf a, Vf b) { return _mm512_min_ps(a, b); }
LEGATO_INLINE Vf max(Vf a, Vf b) { return _mm512_max_ps(a, b); }
// 1 / v, for v in [1, 16), within 2 ulp: one Newton step, without a division.
LEGATO_INLINE Vf inverse(Vf v) {
  const Vf y = _mm512_rcp14_ps(v);
  return fma(y, _mm512_fnmadd_ps(v, y, splat(1.0f)), y);
}
LEGATO_INLINE Vf abs(Vf v) { return _mm512_abs_ps(v); }
LEGATO_INLINE Vf round_even(Vf v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// The nearest whole numbers, even on a tie, for |v| < 2^22.
LEGATO_INLINE Vi to_int(Vf v) { return reinterpret_cast<Vi>(_mm512_cvtps_epi32(v)); }
// v * 2^n for whole n in [-300, 300].
LEGATO_INLINE Vf scale_pow2(Vf v, Vf n) { return _mm512_scalef_ps(v, n); }

// Lane bits, false where either is a NaN.
LEGATO_INLINE uint32_t less_bits(Vf a, Vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
// Lanes of a where the bit is set, of b elsewhere.
LEGATO_INLINE Vf select(uint32_t bits, Vf a, Vf b) { return _mm512_mask_mov_ps(b, static_cast<__mmask16>(bits), a); }

LEGATO_INLINE __m256 upper_half(__m512 v) { return _mm512_extractf32x8_ps(v, 1); }
LEGATO_INLINE float sum(Vf v) { return sum(_mm256_add_ps(_mm512_castps512_ps256(v), upper_half(v))); }
LEGATO_INLINE float largest(Vf v) { return largest(_mm256_max_ps(_mm512_castps512_ps256(v), upper_half(v))); }

LEGATO_INLINE Vf load_bf16(const uint16_t* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}
LEGATO_INLINE Vf load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// 16 pairs of bf16: the first of each, the second of each.
struct VfPair {
  Vf first, second;
};
LEGATO_INLINE VfPair load_bf16_pairs(const uint8_t* p) {
  const __m512i raw = _mm512_loadu_si512(p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(raw, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(raw, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

// The bf16 nearest to v, to even on a tie, is the upper half of each lane; a NaN stays one.
LEGATO_INLINE __m512i bits_above_bf16(Vf v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
}
LEGATO_INLINE __m256i to_bf16(Vf v) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
#else
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits_above_bf16(v), 16));
#endif
}
LEGATO_INLINE Vf rounded_to_bf16(Vf v) {
  return _mm512_castsi512_ps(_mm512_and_si512(bits_above_bf16(v), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
LEGATO_INLINE void store_bf16(uint16_t* p, Vf v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }
LEGATO_INLINE void store_bf16_n(uint16_t* p, Vf v, int n) { _mm256_mask_storeu_epi16(p, first_lanes(n), to_bf16(v)); }

LEGATO_INLINE Vi bf16_bits(Vf v) { return reinterpret_cast<Vi>(_mm512_cvtepu16_epi32(to_bf16(v))); }

// The low byte of each lane.
LEGATO_INLINE void store_bytes(uint8_t* p, Vi v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(v)));
}
// v[i] to p[2 i] or p[4 i]. What lies between is not touched: other threads may write it.
LEGATO_INLINE void store_every_second(uint16_t* p, Vi v) {
  _mm512_mask_storeu_epi16(p, 0x55555555u, reinterpret_cast<__m512i>(v));
}
LEGATO_INLINE void store_every_fourth(uint8_t* p, Vi v) {
  _mm512_mask_storeu_epi8(p, 0x1111111111111111u, reinterpret_cast<__m512i>(v));
}

// The second byte of each of 16 lanes, then the first of each, then zeros.
LEGATO_INLINE __m512i bytes_apart(__m512i v) {
  const __m512i quads = _mm512_set4_epi32(-1, -1, 0x0c080400, 0x0d090501);
  const __m512i fours = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 2, 2, 2, 2, 2, 2, 2);
  return _mm512_permutexvar_epi32(fours, _mm512_shuffle_epi8(v, quads));
}
