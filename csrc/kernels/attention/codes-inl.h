// The two products of attention over an int8 cache, in whole numbers: as exact as the codes, in any order, and four
// slots or dimensions to a lane. Queries and probabilities become 15-bit numbers.

// What attend() is told of an int8 cache; Value is where a fixed-point number lives.
struct CacheI8 {
  using Value = float;
  static constexpr int kQueries = kFewQueries;
  static constexpr bool kFixed = true;
  static constexpr bool kScaled = true;
  static constexpr float kLift = 1.0f;
  static LEGATO_INLINE void put(float* p, Vf v) { store(p, v); }
};

// n numbers (a multiple of 16) in the place of n floats: x = scale * whole, |whole| <= 32639.
struct Fixed {
  uint8_t* words;  // [n / 16][kFixedBytes], in the form that CodeDot reads
  float* figures;  // scale, and two that CodeDot may need

  Fixed(float* memory, int32_t n) : words(reinterpret_cast<uint8_t*>(memory)), figures(memory + n / 2) {}
};

constexpr int32_t kFixedBytes = 2 * kKvTile;  // of sixteen numbers

// A sum with it ends in a whole number: its last 16 bits are that number plus 128, so that the upper byte is the
// nearest multiple of 256.
constexpr float kRounder = 0x1.8p23f + 128.0f;

// How four codes to a lane (u8, 128 for zero) meet four numbers. The exact sum of products is rounded once, to f32.
#if defined(LEGATO_ISA_avx2) || defined(LEGATO_ISA_avx512)

// s16 pairs: part 0 is the first and third of four, part 1 the others. A sum of 512 products stays below 2^31.
struct CodeDot {
  using Acc = Ints;
  using Line = Shorts;
  static constexpr int32_t kSubs = 2;
  static constexpr int32_t kWordBytes = 8;  // from the word of four numbers to the next
  static LEGATO_INLINE Acc start() { return Acc{}; }
  static LEGATO_INLINE Line line(const uint8_t* p, int32_t sub) {
    const Halves codes = load_as<Halves>(p) ^ static_cast<int16_t>(0x8080);
    return reinterpret_cast<Line>(sub == 0 ? (codes << 8) >> 8 : codes >> 8);
  }
  static LEGATO_INLINE Acc mac(Acc acc, Line line, const uint8_t* word, int32_t sub) {
    acc += add_pairs(line, reinterpret_cast<Shorts>(splat_int(load_as<int32_t>(word + 4 * sub))));
    __asm__("" : "+v"(acc));  // else gcc gathers several steps' additions, and runs out of registers
    return acc;
  }
  static LEGATO_INLINE Vf total(Acc acc, const float*) { return __builtin_convertvector(acc, Vf); }
  struct Sums {};
  static LEGATO_INLINE void add_up(Sums, float*) {}
  static LEGATO_INLINE void put(uint8_t* words, uint32_t i, Vf rounded, Sums&) {
    float lanes[kLanes];
    store(lanes, rounded - splat(kRounder));
    int16_t* out = reinterpret_cast<int16_t*>(words) + i;
    for (int32_t g = 0; g < kLanes; g += 4) {
      const int32_t order[4] = {0, 2, 1, 3};
      for (int32_t lane = 0; lane < 4; ++lane) out[g + lane] = static_cast<int16_t>(lanes[g + order[lane]]);
    }
  }
};

#else

// DotI8 takes s8: a number is 256 * high + low, and of sixteen the high parts come first. The offset of the codes is
// taken out through the sums of the parts, times 128: the figures behind the scale.
struct CodeDot {
  struct Acc {
    DotI8::Acc high, low;
  };
  using Line = DotI8::Line;
  static constexpr int32_t kSubs = DotI8::kSubs;
  static constexpr int32_t kWordBytes = 4;
  static LEGATO_INLINE Acc start() { return {DotI8::start(0), DotI8::start(0)}; }
  static LEGATO_INLINE Line line(const uint8_t* p, int32_t sub) { return DotI8::line(p, sub); }
  static LEGATO_INLINE Acc mac(Acc acc, Line line, const uint8_t* word, int32_t sub) {
    return {DotI8::mac(acc.high, line, DotI8::word(word, sub)),
            DotI8::mac(acc.low, line, DotI8::word(word + kKvTile, sub))};
  }
  // The sums of 512 parts are whole numbers below 2^24.
  static LEGATO_INLINE Vf total(Acc acc, const float* figures) {
    const Vf high = DotI8::to_float(acc.high) - splat(figures[1]);
    return fma(high, splat(256.0f), DotI8::to_float(acc.low) - splat(figures[2]));
  }
#if defined(__AVX512VNNI__)
  // Of bytes: the first four lanes of high parts, the next four of low ones.
  using Sums = Ints;
  static LEGATO_INLINE void add_up(const Sums& sums, float* figures) {
    figures[1] = 128.0f * static_cast<float>(sums[0] + sums[1] + sums[2] + sums[3]);
    figures[2] = 128.0f * static_cast<float>(sums[4] + sums[5] + sums[6] + sums[7]);
  }
  static LEGATO_INLINE void put(uint8_t* words, uint32_t i, Vf rounded, Sums& sums) {
    const __m512i parts = bytes_apart(_mm512_xor_si512(_mm512_castps_si512(rounded), _mm512_set1_epi32(0x80)));
    sums = add_bytes(sums, Shorts{} + uint16_t{0x0101}, reinterpret_cast<Shorts>(parts));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + i / kKvTile * kFixedBytes), _mm512_castsi512_si256(parts));
  }
#else
  // Of the numbers and of their high parts. All are below 2^24: exact in f32, in any order.
  struct Sums {
    Ints whole, high;
  };
  static LEGATO_INLINE void add_up(const Sums& sums, float* figures) {
    const float whole = sum(__builtin_convertvector(sums.whole, Vf)),
                high = sum(__builtin_convertvector(sums.high, Vf));
    figures[1] = 128.0f * high;
    figures[2] = 128.0f * (whole - 256.0f * high);
  }
  static LEGATO_INLINE void put(uint8_t* words, uint32_t i, Vf rounded, Sums& sums) {
    using Bytes = int8_t __attribute__((vector_size(kLanes)));
    const Ints whole = reinterpret_cast<Ints>(rounded) - __builtin_bit_cast(int32_t, kRounder);
    const Ints high = (whole + 128) >> 8;  // so that -128 <= low <= 127: the last byte
    sums.whole += whole;
    sums.high += high;
    const Bytes parts[2] = {__builtin_convertvector(high, Bytes), __builtin_convertvector(whole, Bytes)};
    uint8_t* out = words + i / kKvTile * kFixedBytes + i % kKvTile;
    __builtin_memcpy(out, &parts[0], sizeof(Bytes));
    __builtin_memcpy(out + kKvTile, &parts[1], sizeof(Bytes));
  }
#endif
};

#endif

// x[begin .. end - 1], whose largest magnitude is known, to `out`. A NaN or an infinity gives the scale NaN.
LEGATO_INLINE void fix(const float* x, int32_t begin, int32_t end, const Range& range, const Fixed& out) {
  constexpr float kLargest = 32639.0f;  // 256 * 127 + 127
  out.figures[0] = range.faulty ? __builtin_nanf("") : 0.0f;
  out.figures[1] = out.figures[2] = 0.0f;
  if (!range.plain()) {
    __builtin_memset(out.words + begin * 2, 0, static_cast<size_t>(end - begin) * 2);
    return;
  }
  const Vf inverse = splat(kLargest / range.largest);
  CodeDot::Sums sums{};
  for (int32_t i = begin; i < end; i += kLanes) {
    CodeDot::put(out.words, static_cast<uint32_t>(i), fma(load(x + i), inverse, splat(kRounder)), sums);
  }
  out.figures[0] = range.largest / kLargest;
  CodeDot::add_up(sums, out.figures);
}

// Sums of codes times numbers, of M vectors of numbers and N vectors of lanes.
template <int M, int N>
struct CodeSums {
  CodeDot::Acc acc[M][N];

  LEGATO_INLINE CodeSums() {
    LEGATO_UNROLL for (int m = 0; m < M; ++m) {
      LEGATO_UNROLL for (int j = 0; j < N; ++j) acc[m][j] = CodeDot::start();
    }
  }

  // One line of codes; `word` holds the first vector's four numbers, the others are stride bytes apart.
  LEGATO_INLINE void add(const uint8_t* const (&lines)[N], const uint8_t* word, int64_t stride) {
    LEGATO_UNROLL for (int32_t sub = 0; sub < CodeDot::kSubs; ++sub) {
      CodeDot::Line line[N];
      LEGATO_UNROLL for (int j = 0; j < N; ++j) line[j] = CodeDot::line(lines[j], sub);
      LEGATO_UNROLL for (int m = 0; m < M; ++m) {
        LEGATO_UNROLL for (int j = 0; j < N; ++j) {
          acc[m][j] = CodeDot::mac(acc[m][j], line[j], word + m * stride, sub);
        }
      }
    }
  }
};

// Vectors of lanes kept in registers with M vectors of numbers: of 16 registers 12 hold sums, of 32 all but 8.
template <int M>
constexpr int kCodeVectors = [] {
  constexpr int kSums = M * sizeof(CodeDot::Acc) / sizeof(Vf);
  if (kLanes == 16) return 4 * kSums <= 24 ? 4 : 2;
  return kLanes == 8 && 2 * kSums <= 12 ? 2 : 1;
}();

// Scores of M queries, `pad` numbers each, without any scale, for N vectors of slots; `next` are read after them.
template <int M, int N>
LEGATO_INLINE void score_code_vectors(float* q, int32_t pad, const uint8_t* const (&k)[N],
                                      const uint8_t* const (&next)[N], float* scores) {
  CodeSums<M, N> sums;
  const int64_t tile_bytes = int64_t{pad} * kKvTile;
  LEGATO_UNROLL for (int j = 0; j < N; ++j) __builtin_prefetch(k[j] + 2 * tile_bytes);  // scales
  const uint8_t* words = Fixed(q, pad).words;  // one word of four numbers meets each line
  for (int64_t at = 0; at < tile_bytes; at += 4 * kLineBytes, words += kFixedBytes) {
    LEGATO_UNROLL for (int32_t i = 0; i < 4; ++i) {
      const uint8_t* lines[N];
      LEGATO_UNROLL for (int j = 0; j < N; ++j) {
        lines[j] = k[j] + at + i * kLineBytes;
        __builtin_prefetch(next[j] + at + i * kLineBytes);
        if (M > kAheadQueries || 2 * at < tile_bytes) __builtin_prefetch(lines[j] + tile_bytes, 0, 2);  // V
      }
      sums.add(lines, words + i * CodeDot::kWordBytes, int64_t{pad} * 4);
    }
  }
  LEGATO_UNROLL for (int m = 0; m < M; ++m) {
    const float* figures = Fixed(q + m * pad, pad).figures;
    LEGATO_UNROLL for (int j = 0; j < N; ++j) {
      store(scores + m * kKvSplit + j * kLanes, CodeDot::total(sums.acc[m][j], figures));
    }
  }
}

// For tiles [begin, end) of a split; as score_tiles.
template <int M>
LEGATO_INLINE void score_codes(float* q, int32_t pad, const uint8_t* const* tiles, int32_t begin, int32_t end,
                               float* scores) {
  constexpr int kCount = kCodeVectors<M>;
  int32_t v = begin * kTileVectors;
  const int32_t last = end * kTileVectors;
  const auto at = [tiles](int32_t i) { return tiles[i / kTileVectors] + i % kTileVectors * kVectorBytes; };
  for (; v + kCount <= last; v += kCount) {
    const uint8_t *k[kCount], *next[kCount];
    LEGATO_UNROLL for (int j = 0; j < kCount; ++j) {
      k[j] = at(v + j);
      next[j] = at(smaller(v + j + kCount, last - 1));
    }
    score_code_vectors<M, kCount>(q, pad, k, next, scores + v * kLanes);
  }
  for (; v < last; ++v) {
    const uint8_t* const k[1] = {at(v)};
    score_code_vectors<M, 1>(q, pad, k, k, scores + v * kLanes);
  }
}

// acc_rows[m][columns] = sum over the slots of tiles [begin, end) of weight times V, for N vectors from byte `column`.
// `next` as in weigh_columns.
template <int M, int N>
LEGATO_INLINE void weigh_code_columns(float* weights, const uint8_t* const* tiles, const uint8_t* const* next,
                                      int32_t begin, int32_t end, int64_t line_bytes, int64_t column,
                                      float* const* acc_rows) {
  CodeSums<M, N> sums;
  const uint8_t* words = Fixed(weights, kKvSplit).words + begin * kFixedBytes;
  for (int32_t t = begin; t < end; ++t) {
    const uint8_t* v = tiles[t] + column;
    LEGATO_UNROLL for (int32_t i = 0; i < 4; ++i, v += line_bytes) {
      const uint8_t* lines[N];
      LEGATO_UNROLL for (int j = 0; j < N; ++j) {
        lines[j] = v + j * kVectorBytes;
        if constexpr (M <= kAheadQueries) {
          const int64_t at = lines[j] - tiles[t];
          __builtin_prefetch(tiles[smaller(t + kAheadTiles, end - 1)] + at);
          __builtin_prefetch(next[t] + at, 0, 2);
        }
      }
      sums.add(lines, words + i * CodeDot::kWordBytes, int64_t{kKvSplit} * 4);
    }
    words += kFixedBytes;
  }
  LEGATO_UNROLL for (int m = 0; m < M; ++m) {
    const float* figures = Fixed(weights + m * kKvSplit, kKvSplit).figures;
    LEGATO_UNROLL for (int j = 0; j < N; ++j) {
      store(acc_rows[m] + column / 4 + j * kLanes, CodeDot::total(sums.acc[m][j], figures) * splat(figures[0]));
    }
  }
}

template <int M>
LEGATO_INLINE void weigh_codes(float* weights, const uint8_t* const* tiles, const uint8_t* const* next, int32_t begin,
                               int32_t end, int32_t head_pad, float* const* acc_rows) {
  constexpr int kCount = kCodeVectors<M>;
  const int64_t line_bytes = static_cast<int64_t>(head_pad) * 4;
  int64_t column = 0;
  for (; column + kCount * kVectorBytes <= line_bytes; column += kCount * kVectorBytes) {
    weigh_code_columns<M, kCount>(weights, tiles, next, begin, end, line_bytes, column, acc_rows);
  }
  for (; column < line_bytes; column += kVectorBytes) {
    weigh_code_columns<M, 1>(weights, tiles, next, begin, end, line_bytes, column, acc_rows);
  }
}
