// How one step of K enters the accumulators, for each weight type and ISA level.
//
// A step is what one word of activations holds (one f32, two bf16, four s8), met by one line of a panel. Some
// levels take it in `kSubs` parts, each with its own form of the line and of the word. Nothing here depends on how many
// rows share a step, and mac() is all that orders the sum of an output element.

constexpr int32_t kWord = 4;  // bytes of a word, but for the pairs of bf16 that are stored as f32 (kWordBytes)

using Ints = Vi;
using Shorts = uint16_t __attribute__((vector_size(4 * kLanes)));

template <class Vector>
LEGATO_INLINE Vector load_as(const uint8_t* p) {
  Vector v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

LEGATO_INLINE Ints splat_int(int32_t x) { return x - Ints{}; }

// acc + line * word, rounded once, and acc + the sum of four products of bytes. Spelled out on x86: from intrinsics gcc
// makes code that copies or spills accumulators, and each copy takes the place of a multiply-add.
LEGATO_INLINE Vf add_product(Vf acc, Vf line, Vf word) {
#if defined(LEGATO_ISA_portable)
  return fma(line, word, acc);
#else
  __asm__("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(line), "v"(word));
  return acc;
#endif
}

#if defined(LEGATO_ISA_avx2_vnni)
#define LEGATO_VPDPBUSD "%{vex%} vpdpbusd"
#else
#define LEGATO_VPDPBUSD "vpdpbusd"
#endif

#if defined(__AVXVNNI__) || defined(__AVX512VNNI__)
LEGATO_INLINE Ints add_bytes(Ints acc, Shorts unsigned_bytes, Shorts signed_bytes) {
  __asm__(LEGATO_VPDPBUSD " %2, %1, %0" : "+v"(acc) : "v"(unsigned_bytes), "v"(signed_bytes));
  return acc;
}
#endif

struct DotF32 {
  using Acc = Vf;
  using Line = Vf;
  static constexpr int32_t kSubs = 1;
  static constexpr int32_t kColumnBytes = 4;                    // of one column in a line
  static constexpr int32_t kStepBytes = kPanel * kColumnBytes;  // of a step in a panel
  static constexpr int32_t kFreshLines = 4;                     // cache lines of a step that no step before it has read
  static constexpr int32_t kWordValues = 1;                     // that a step takes of each row
  static constexpr int32_t kWordBytes = kWord;                  // in which they are stored
  static constexpr bool kKeeps = false;                         // whether lines are kept
  static constexpr bool kHeavy = false;                         // whether a line takes a row several operations
  static LEGATO_INLINE Vf line(const uint8_t* p, int32_t) { return load_as<Vf>(p); }
  static LEGATO_INLINE Vf word(const uint8_t* p, int32_t) { return splat(load_as<float>(p)); }
  static LEGATO_INLINE Acc mac(Acc acc, Vf line, Vf word) { return add_product(acc, line, word); }
};

struct DotF16 : DotF32 {
  static constexpr bool kHeavy = true;
  static constexpr int32_t kColumnBytes = 2;
  static constexpr int32_t kStepBytes = kPanel * kColumnBytes;
  static constexpr int32_t kFreshLines = 2;
  static LEGATO_INLINE Vf line(const uint8_t* p, int32_t) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }
};

#if defined(LEGATO_ISA_avx512_bf16)

struct DotBf16 : DotF32 {
  using Line = __m512bh;
  static constexpr int32_t kWordValues = 2;
  static LEGATO_INLINE Line line(const uint8_t* p, int32_t) { return load_as<Line>(p); }
  static LEGATO_INLINE Line word(const uint8_t* p, int32_t) {
    return reinterpret_cast<Line>(splat_int(load_as<int32_t>(p)));
  }
  static LEGATO_INLINE Acc mac(Acc acc, Line line, Line word) { return _mm512_dpbf16_ps(acc, line, word); }
};

#else

// Part 0 is the odd k of the pair, part 1 the even: the order of vdpbf16ps, and so its bits, since a product of two
// bf16 is exact in f32. A bf16 is the upper half of an f32. Activations are stored as f32.
struct DotBf16 : DotF32 {
  static constexpr bool kHeavy = true;
  static constexpr int32_t kWordValues = 2;
  static constexpr int32_t kWordBytes = 8;
  static constexpr int32_t kSubs = 2;
  static LEGATO_INLINE Vf line(const uint8_t* p, int32_t sub) {
    const Ints pairs = load_as<Ints>(p);
    return reinterpret_cast<Vf>(sub == 0 ? pairs & -65536 : pairs << 16);
  }
  static LEGATO_INLINE Vf word(const uint8_t* p, int32_t sub) {
    return splat(load_as<float>(p + (sub == 0 ? kWord : 0)));
  }
};

// The same, and the lines as f32 are kept for other tiles: the even k of a step's pairs, then the odd.
struct DotKeep : DotBf16 {
  static constexpr bool kKeeps = true;
};

// The same from lines that DotKeep has kept.
struct DotWide : DotBf16 {
  static constexpr int32_t kStepBytes = 2 * kPanel * kColumnBytes;
  static LEGATO_INLINE Vf line(const uint8_t* p, int32_t sub) {
    return load_as<Vf>(p + (sub == 0 ? kPanel * kColumnBytes : 0));
  }
};

#endif

#if defined(LEGATO_ISA_avx2)
LEGATO_INLINE Ints add_pairs(Shorts a, Shorts b) {
  return reinterpret_cast<Ints>(_mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
LEGATO_INLINE Shorts multiply_bytes(Shorts unsigned_bytes, Shorts signed_bytes) {
  return reinterpret_cast<Shorts>(
      _mm256_maddubs_epi16(reinterpret_cast<__m256i>(unsigned_bytes), reinterpret_cast<__m256i>(signed_bytes)));
}
#elif defined(LEGATO_ISA_avx512)
LEGATO_INLINE Ints add_pairs(Shorts a, Shorts b) {
  return reinterpret_cast<Ints>(_mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
LEGATO_INLINE Shorts multiply_bytes(Shorts unsigned_bytes, Shorts signed_bytes) {
  return reinterpret_cast<Shorts>(
      _mm512_maddubs_epi16(reinterpret_cast<__m512i>(unsigned_bytes), reinterpret_cast<__m512i>(signed_bytes)));
}
#endif

constexpr int32_t kWidePart = 64;  // bytes of one part of WideWords

// u8 codes by s8 activations, code = (byte >> Shift) & Mask, from a start value. All sums are exact.
template <int32_t Shift, int32_t Mask>
struct DotCodes {
  static constexpr int32_t kWordBytes = kWord;
  static constexpr bool kKeeps = false;
  static constexpr bool kHeavy = Mask != 255;
  static constexpr int32_t kColumnBytes = 4;
  static constexpr int32_t kStepBytes = kPanel * kColumnBytes;
  // The high nibbles' lines were the low ones'; what is new are the scales and minima of the next group.
  static constexpr int32_t kFreshLines = Shift == 0 ? 4 : 1;

#if defined(LEGATO_ISA_portable)
  // Whole numbers in f32: a group's sum stays below 2^24, so each step is exact. Part i is byte i of the word.
  using Acc = Vf;
  using Line = Vf;
  static constexpr int32_t kSubs = 4;
  static LEGATO_INLINE Acc none() { return Acc{}; }
  static LEGATO_INLINE Acc start(int32_t x) { return splat(static_cast<float>(x)); }
  static LEGATO_INLINE Line line(const uint8_t* p, int32_t sub) {
    return __builtin_convertvector((load_as<Ints>(p) >> (8 * sub + Shift)) & Mask, Vf);
  }
  static LEGATO_INLINE Line word(const uint8_t* p, int32_t sub) {
    return splat(static_cast<float>(static_cast<int8_t>(p[sub])));
  }
  static LEGATO_INLINE Acc mac(Acc acc, Line line, Line word) { return acc + line * word; }
  static LEGATO_INLINE Vf to_float(Acc acc) { return acc; }

#elif defined(LEGATO_ISA_avx2) || defined(LEGATO_ISA_avx512)
  // vpmaddubsw adds two products in s16. Those of nibbles fit (2 * 15 * 128); those of bytes would saturate, so they
  // are widened first: part 0 is k = 0 and 2 of the word as pairs of s16, part 1 is k = 1 and 3. Words are WideWords.
  using Acc = Ints;
  using Line = Shorts;
  static LEGATO_INLINE Acc none() { return Acc{}; }
  static constexpr bool kWide = Mask == 255;
  static constexpr int32_t kSubs = kWide ? 2 : 1;
  static constexpr uint16_t kMask = kWide ? 255 : Mask * 257;
  static LEGATO_INLINE Acc start(int32_t x) { return splat_int(x); }
  static LEGATO_INLINE Line line(const uint8_t* p, int32_t sub) {
    const Line bytes = load_as<Line>(p);
    return sub == 1 ? bytes >> 8 : (bytes >> Shift) & kMask;
  }
  static LEGATO_INLINE Line word(const uint8_t* p, int32_t sub) {
    return reinterpret_cast<Line>(splat_int(load_as<int32_t>(p + sub * kWidePart)));
  }
  static LEGATO_INLINE Acc mac(Acc acc, Line line, Line word) {
    acc += kWide ? add_pairs(line, word) : add_pairs(multiply_bytes(line, word), Line{} + uint16_t{1});
    __asm__("" : "+v"(acc));  // else gcc gathers several steps' additions, and runs out of registers
    return acc;
  }
  static LEGATO_INLINE Vf to_float(Acc acc) { return __builtin_convertvector(acc, Vf); }

#else
  using Acc = Ints;
  using Line = Shorts;
  static constexpr uint16_t kMask = Mask * 257;
  static constexpr int32_t kSubs = 1;
  static LEGATO_INLINE Acc none() {  // gcc would copy one zeroed register, in place of a multiply-add
    Acc acc;
    __asm__ volatile("vxorps %0, %0, %0" : "=v"(acc));
    return acc;
  }
  static LEGATO_INLINE Acc start(int32_t x) { return splat_int(x); }
  static LEGATO_INLINE Line line(const uint8_t* p, int32_t) { return (load_as<Line>(p) >> Shift) & kMask; }
  static LEGATO_INLINE Line word(const uint8_t* p, int32_t) {
    return reinterpret_cast<Line>(splat_int(load_as<int32_t>(p)));
  }
  static LEGATO_INLINE Acc mac(Acc acc, Line line, Line word) { return add_bytes(acc, line, word); }
  static LEGATO_INLINE Vf to_float(Acc acc) { return __builtin_convertvector(acc, Vf); }
#endif
};

using DotI8 = DotCodes<0, 255>;
using DotLow = DotCodes<0, 15>;
using DotHigh = DotCodes<4, 15>;
// Expanded nibbles, one a byte.
#if defined(LEGATO_ISA_avx2) || defined(LEGATO_ISA_avx512)
using DotNibbles = DotLow;
#else
using DotNibbles = DotI8;
#endif
