// How attention reads the cache, for each element type: one 64-byte line of a K tile (16 slots) or 16 columns of a V
// tile's line meet one factor of each query (values of q, or probabilities). A line holds kValues of them: one for
// f32, the two of a pair for bf16, four for e4m3. With kScaled each slot has a scale for K and one for V, kept apart.
//
// mac() alone orders the sums: it must not depend on how many queries share the line.

constexpr int kFewQueries = kLanes == 16 ? 6 : 4;  // queries whose sums always find registers

struct CacheUnscaled {
  static constexpr int kQueries = kFewQueries;  // of one block, which shares what becomes of a line
  static constexpr bool kFixed = false;
  static constexpr bool kScaled = false;
  static constexpr float kLift = 1.0f;  // a power of two that q and the probabilities are multiplied by
  static constexpr float kUnit = 1.0f;  // and what a product is multiplied by in turn
};

struct CacheF32 : CacheUnscaled {
  using Value = float;  // of q and of the probabilities
  using Line = Vf;
  static constexpr int kValues = 1;
  static constexpr int kColumns = kLanes == 16 ? 4 : 2;  // vectors of V columns kept in registers
  static LEGATO_INLINE Line line(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
  static LEGATO_INLINE Line keep(Line v, bool, bool) { return v; }
  static LEGATO_INLINE Vf mac(Vf acc, Line v, const float* factor) { return fma(v, splat(*factor), acc); }
  static LEGATO_INLINE void put(float* p, Vf v) { store(p, v); }
};

// bf16: q and the probabilities are rounded to it too, and of a pair the second product is added first. That is what
// vdpbf16ps does; two FMAs give its very bits, since a product of two bf16 is exact in f32.

using Halves = int16_t __attribute__((vector_size(4 * kLanes)));

#if defined(__AVX512BF16__)

struct CacheBf16 : CacheUnscaled {
  using Value = uint16_t;
  using Line = __m512i;
  static constexpr int kValues = 2;
  static constexpr int kColumns = 4;
  static LEGATO_INLINE Line line(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static LEGATO_INLINE Line line_of(Halves pairs) { return reinterpret_cast<Line>(pairs); }
  // Zero in place of the first or the second of each pair.
  static LEGATO_INLINE Line keep(Line v, bool first, bool second) {
    const uint32_t mask = (first ? 0xffffu : 0u) | (second ? 0xffff0000u : 0u);
    return _mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(mask)));
  }
  static LEGATO_INLINE Vf mac(Vf acc, Line v, const uint16_t* factor) {
    int pair;
    __builtin_memcpy(&pair, factor, sizeof(pair));
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(v), reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair)));
  }
  static LEGATO_INLINE void put(uint16_t* p, Vf v) { store_bf16(p, v); }
};

#else

struct CacheBf16 : CacheUnscaled {
  using Value = float;
  using Line = VfPair;
  static constexpr int kQueries = kLanes == 16 ? 12 : kFewQueries;  // widening: 1 operation of 13, of 7 with 6
  static constexpr int kValues = 2;
  static constexpr int kColumns = 2;
  static LEGATO_INLINE Line line(const uint8_t* p) { return load_bf16_pairs(p); }
  static LEGATO_INLINE Line line_of(Halves pairs) {
    const Ints bits = reinterpret_cast<Ints>(pairs);
    return {reinterpret_cast<Vf>(bits << 16), reinterpret_cast<Vf>(bits & -65536)};
  }
  // Zero in place of the first or the second of each pair.
  static LEGATO_INLINE Line keep(Line v, bool first, bool second) {
    return {first ? v.first : zero(), second ? v.second : zero()};
  }
  static LEGATO_INLINE Vf mac(Vf acc, Line v, const float* factor) {
    return fma(v.first, splat(factor[0]), fma(v.second, splat(factor[1]), acc));
  }
  static LEGATO_INLINE void put(float* p, Vf v) { store(p, rounded_to_bf16(v)); }
};

#endif

// Codes of normal numbers and zero become bf16 by moving their bits: each is 2^-120 of what it stands for. The lift
// keeps products far from the subnormal numbers, which are flushed, and any code times zero is zero.
struct CacheE4m3 {
  using Value = CacheBf16::Value;
  struct Line {
    CacheBf16::Line low, high;
  };
  static constexpr int kQueries = kFewQueries;
  static constexpr int kValues = 4;
  static constexpr int kColumns = CacheBf16::kColumns;
  static constexpr bool kFixed = false;
  static constexpr bool kScaled = true;
  static constexpr float kLift = 0x1p100f;
  static constexpr float kUnit = 0x1p20f;
  static LEGATO_INLINE Line line(const uint8_t* p) {
    constexpr int16_t kSignAndMagnitude = static_cast<int16_t>(0x87f0);
    const Halves codes = load_as<Halves>(p);
    return {CacheBf16::line_of(((codes << 8) >> 4) & kSignAndMagnitude),
            CacheBf16::line_of((codes >> 4) & kSignAndMagnitude)};
  }
  static LEGATO_INLINE Line keep(Line v, bool, bool) { return v; }
  static LEGATO_INLINE Vf mac(Vf acc, const Line& v, const Value* factor) {
    return CacheBf16::mac(CacheBf16::mac(acc, v.low, factor), v.high, factor + 2);
  }
  static LEGATO_INLINE void put(Value* p, Vf v) { CacheBf16::put(p, v); }
};
