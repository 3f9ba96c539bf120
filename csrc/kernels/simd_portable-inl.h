// 4 lanes of the compiler's generic vectors: any CPU. There is no fused multiply-add here.

using Vf = float __attribute__((vector_size(16)));
using Vi = int32_t __attribute__((vector_size(16)));
constexpr int kLanes = 4;
constexpr uint32_t kAllLanes = 0xfu;

LEGATO_INLINE float float_from_f16(uint16_t bits);
LEGATO_INLINE float float_from_bf16(uint16_t bits);
LEGATO_INLINE uint16_t bf16_from_float(float value);

LEGATO_INLINE Vf splat(float x) { return Vf{x, x, x, x}; }
LEGATO_INLINE Vf load(const float* p) {
  Vf v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
LEGATO_INLINE Vf load_n(const float* p, int n) {
  float lanes[kLanes] = {};  // copied as bytes: p may hold other words than floats
  for (int i = 0; i < n; ++i) __builtin_memcpy(lanes + i, p + i, sizeof(float));
  return load(lanes);
}
LEGATO_INLINE void store(float* p, Vf v) { __builtin_memcpy(p, &v, sizeof(v)); }
LEGATO_INLINE void store_n(float* p, Vf v, int n) {
  for (int i = 0; i < n; ++i) p[i] = v[i];
}

// a * b + c.
LEGATO_INLINE Vf fma(Vf a, Vf b, Vf c) { return a * b + c; }
// b where either is a NaN.
LEGATO_INLINE Vf min(Vf a, Vf b) { return a < b ? a : b; }
LEGATO_INLINE Vf max(Vf a, Vf b) { return a > b ? a : b; }
// 1 / v, for v in [1, 16), within 2 ulp.
LEGATO_INLINE Vf inverse(Vf v) { return splat(1.0f) / v; }
LEGATO_INLINE Vf abs(Vf v) { return reinterpret_cast<Vf>(reinterpret_cast<Vi>(v) & 0x7fffffff); }
// For |v| < 2^22: adding 1.5 * 2^23 leaves no bits behind the point.
LEGATO_INLINE Vf round_even(Vf v) { return (v + splat(0x1.8p23f)) - splat(0x1.8p23f); }
// The nearest whole numbers, even on a tie, for |v| < 2^22.
LEGATO_INLINE Vi to_int(Vf v) { return reinterpret_cast<Vi>(v + splat(0x1.8p23f)) - 0x4b400000; }
LEGATO_INLINE Vf pow2(Vi n) { return reinterpret_cast<Vf>((n + 127) << 23); }
// v * 2^n for whole n in [-250, 250]: in two factors, since one alone may leave the range of exponents.
LEGATO_INLINE Vf scale_pow2(Vf v, Vf n) {
  const Vi whole = to_int(n);
  const Vi half = whole >> 1;
  return v * pow2(half) * pow2(whole - half);
}

// Lane bits, false where either is a NaN.
LEGATO_INLINE uint32_t less_bits(Vf a, Vf b) {
  const Vi less = a < b;
  return static_cast<uint32_t>((less[0] & 1) | (less[1] & 2) | (less[2] & 4) | (less[3] & 8));
}
// Lanes of a where the bit is set, of b elsewhere.
LEGATO_INLINE Vf select(uint32_t bits, Vf a, Vf b) {
  const Vi lane_bit = {1, 2, 4, 8};
  return (lane_bit & static_cast<int32_t>(bits)) != 0 ? a : b;
}

LEGATO_INLINE float sum(Vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
LEGATO_INLINE float largest(Vf v) {
  const float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
  return a > b ? a : b;
}

LEGATO_INLINE Vf load_bf16(const uint16_t* p) {
  return Vf{float_from_bf16(p[0]), float_from_bf16(p[1]), float_from_bf16(p[2]), float_from_bf16(p[3])};
}
LEGATO_INLINE Vf load_f16(const uint16_t* p) {
  return Vf{float_from_f16(p[0]), float_from_f16(p[1]), float_from_f16(p[2]), float_from_f16(p[3])};
}

// 4 pairs of bf16: the first of each, the second of each.
struct VfPair {
  Vf first, second;
};
LEGATO_INLINE VfPair load_bf16_pairs(const uint8_t* p) {
  uint16_t raw[2 * kLanes];
  __builtin_memcpy(raw, p, sizeof(raw));
  VfPair pairs;
  for (int i = 0; i < kLanes; ++i) {
    pairs.first[i] = float_from_bf16(raw[2 * i]);
    pairs.second[i] = float_from_bf16(raw[2 * i + 1]);
  }
  return pairs;
}

// Round to nearest even; a NaN stays one.
LEGATO_INLINE Vf rounded_to_bf16(Vf v) {
  for (int i = 0; i < kLanes; ++i) v[i] = float_from_bf16(bf16_from_float(v[i]));
  return v;
}
LEGATO_INLINE void store_bf16_n(uint16_t* p, Vf v, int n) {
  for (int i = 0; i < n; ++i) p[i] = bf16_from_float(v[i]);
}
LEGATO_INLINE void store_bf16(uint16_t* p, Vf v) { store_bf16_n(p, v, kLanes); }

LEGATO_INLINE Vi bf16_bits(Vf v) {
  Vi bits;
  for (int i = 0; i < kLanes; ++i) bits[i] = bf16_from_float(v[i]);
  return bits;
}

// The low byte of each lane.
LEGATO_INLINE void store_bytes(uint8_t* p, Vi v) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<uint8_t>(v[i]);
}
// v[i] to p[2 i] or p[4 i]. What lies between is not touched: other threads may write it.
LEGATO_INLINE void store_every_second(uint16_t* p, Vi v) {
  for (int i = 0; i < kLanes; ++i) p[2 * i] = static_cast<uint16_t>(v[i]);
}
LEGATO_INLINE void store_every_fourth(uint8_t* p, Vi v) {
  for (int i = 0; i < kLanes; ++i) p[4 * i] = static_cast<uint8_t>(v[i]);
}
