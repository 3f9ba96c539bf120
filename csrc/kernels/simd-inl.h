// A thin vector layer, one per ISA level: float vectors of kLanes lanes, with the compiler's own operators + - * /.
//
// Included inside the level's unnamed namespace, so nothing here has a linkage that another level could share.
// Sums over lanes have one fixed order per level. Every `_n` function touches only the first n lanes' memory
// (0 <= n <= kLanes); loads fill the rest with zero.

#define LEGATO_INLINE inline __attribute__((always_inline))

#if defined(LEGATO_ISA_portable)
#include "kernels/simd_portable-inl.h"
#elif defined(LEGATO_ISA_avx2) || defined(LEGATO_ISA_avx2_vnni)
#include "kernels/simd_avx2-inl.h"
#else
#include "kernels/simd_avx512-inl.h"
#endif

constexpr float kInfinity = __builtin_inff();

LEGATO_INLINE Vf zero() { return splat(0.0f); }

// As load_n and store_n, without a mask where all lanes are meant.
LEGATO_INLINE Vf load_some(const float* p, int n) { return n == kLanes ? load(p) : load_n(p, n); }
LEGATO_INLINE void store_some(float* p, Vf v, int n) { n == kLanes ? store(p, v) : store_n(p, v, n); }

// The larger of two numbers that are not negative; a NaN if either is one, since its bits are the largest.
LEGATO_INLINE Vf larger_bits(Vf a, Vf b) {
  using Bits = uint32_t __attribute__((vector_size(4 * kLanes)));
  const Bits x = reinterpret_cast<Bits>(a), y = reinterpret_cast<Bits>(b);
  return reinterpret_cast<Vf>(x < y ? y : x);
}

// exp(x) within 2 ulp: 1 + r + r^2 q(r) on |r| <= ln 2 / 2, times 2^n. Exactly 1 at 0; 0 far below, inf far above; NaN
// stays NaN (the vector minimum and maximum return their second operand then).
LEGATO_INLINE Vf exp(Vf x) {
  x = min(splat(89.0f), max(splat(-104.0f), x));
  const Vf n = round_even(x * splat(1.44269504f));
  Vf r = fma(n, splat(-0.693115234375f), x);
  r = fma(n, splat(-3.194618494528623e-05f), r);
  Vf q = splat(1.3814467238e-03f);
  q = fma(q, r, splat(8.3687808365e-03f));
  q = fma(q, r, splat(4.1668392718e-02f));
  q = fma(q, r, splat(1.6666519642e-01f));
  q = fma(q, r, splat(4.9999994040e-01f));
  return scale_pow2(fma(r * r, q, r) + splat(1.0f), n);
}

// 2^x within 2 ulp for x <= 0: 1 + r q(r) on |r| <= 1 / 2, times 2^n. Exactly 1 at 0, 0 far below; NaN stays NaN.
LEGATO_INLINE Vf exp2(Vf x) {
  x = max(splat(-160.0f), x);
  const Vf n = round_even(x), r = x - n;
  Vf q = splat(1.3264727313e-03f);
  q = fma(q, r, splat(9.6715129912e-03f));
  q = fma(q, r, splat(5.5507335812e-02f));
  q = fma(q, r, splat(2.4022242427e-01f));
  q = fma(q, r, splat(6.9314700365e-01f));
  return scale_pow2(fma(q, r, splat(1.0f)), n);
}

// Bits of the lanes that hold a NaN or an infinity.
LEGATO_INLINE uint32_t fault_bits(Vf v) { return ~less_bits(abs(v), splat(kInfinity)) & kAllLanes; }

// 1 / sqrt(x) by the exact operations.
LEGATO_INLINE float inverse_sqrt(float x) { return 1.0f / __builtin_sqrtf(x); }

LEGATO_INLINE int32_t round_up(int32_t value, int32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

template <class T>
LEGATO_INLINE T smaller(T a, T b) {
  return b < a ? b : a;
}

template <class T>
LEGATO_INLINE T larger(T a, T b) {
  return a < b ? b : a;
}

LEGATO_INLINE float float_from_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
LEGATO_INLINE uint32_t bits_from_float(float value) { return __builtin_bit_cast(uint32_t, value); }

LEGATO_INLINE float float_from_bf16(uint16_t bits) { return float_from_bits(static_cast<uint32_t>(bits) << 16); }

// Round to nearest even; a NaN stays one.
LEGATO_INLINE uint16_t bf16_from_float(float value) {
  const uint32_t bits = bits_from_float(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

LEGATO_INLINE float float_from_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude < 0x400u) {  // zero or subnormal: an exact product, with no subnormal float on the way
    return float_from_bits(sign | bits_from_float(static_cast<float>(magnitude) * 0x1p-24f));
  }
  const uint32_t rebias = magnitude >= 0x7c00u ? (255u - 31u) << 23 : (127u - 15u) << 23;
  return float_from_bits(sign | ((magnitude << 13) + rebias));
}
