// How attention reads the cache, for each element type: one 64-byte line of a K tile (16 slots) or 16 columns of a V
// tile's line meet one factor of each query (values of q, or probabilities). A line holds kValues of them: one for
// f32, the two of a pair for bf16.
//
// mac() alone orders the sums: it must not depend on how many queries share the line.

struct CacheF32 {
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

#if defined(__AVX512BF16__)

struct CacheBf16 {
  using Value = uint16_t;
  using Line = __m512i;
  static constexpr int kValues = 2;
  static constexpr int kColumns = 4;
  static LEGATO_INLINE Line line(const uint8_t* p) { return _mm512_loadu_si512(p); }
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

struct CacheBf16 {
  using Value = float;
  using Line = VfPair;
  static constexpr int kValues = 2;
  static constexpr int kColumns = 2;
  static LEGATO_INLINE Line line(const uint8_t* p) { return load_bf16_pairs(p); }
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
