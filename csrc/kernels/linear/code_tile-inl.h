// Register tiles of i8, q4 and i4 weights: an exact integer sum per activation group, added up in f32 in order of k.
//
// The zero point enters through the exact sums of the activations: sum((q - zero) a) = sum(q a) - zero sum(a). With one
// scale per channel what is taken away is the same for all columns, and y starts at it; else the sum of a group does.

// The expanded ones are q4's, one code a byte and their factors in f32. i4 is i8_channel of expanded i4, for one row.
enum class Codes : int32_t { i8_channel, i4, i8_group, q4, q4_min, expanded, expanded_min };

template <Codes C>
constexpr bool kHasMin = C == Codes::q4_min || C == Codes::expanded_min;
template <Codes C>
constexpr bool kExpanded = C == Codes::expanded || C == Codes::expanded_min;
template <Codes C>
constexpr bool kPacked = C == Codes::q4 || C == Codes::q4_min;
template <Codes C>
constexpr bool kPerChannel = C == Codes::i8_channel || C == Codes::i4;
// Bytes of one column's factors, at the head of a group.
template <Codes C>
constexpr int32_t kFactorBytes = kPerChannel<C> ? 0
                                 : kExpanded<C> ? 4
                                                : 2;

// Activation groups of a run, each of which meets one group of weights.
struct CodeShape {
  int32_t groups;
  int32_t steps;  // of a group
  int64_t header_bytes;
  int64_t group_bytes;
};

template <Codes C>
LEGATO_INLINE CodeShape code_shape(int32_t k, int32_t group) {
  const int32_t code_bytes = (kPacked<C> ? group / 2 : group) * kPanel;
  const int32_t header_bytes = (kHasMin<C> ? 2 : 1) * kPanel * kFactorBytes<C>;
  return {k / group, group / kWord, header_bytes, header_bytes + code_bytes};
}

// The s8 of an activation group of M rows as pairs of s16, in the two parts that a level without a dot product of bytes
// meets a line with: shifted once for all columns of a block, since that takes the ports of the products.
template <int32_t M>
struct WideWords {
  static constexpr int64_t kRowBytes = 2 * kWidePart;
  alignas(64) uint8_t bytes[M * kRowBytes];

  LEGATO_INLINE WideWords(const uint8_t* words, int64_t row_bytes, int32_t n) {
    using Signed = int16_t __attribute__((vector_size(32)));
    for (int32_t m = 0; m < M; ++m, words += row_bytes) {
      for (int32_t i = 0; i < n; i += static_cast<int32_t>(sizeof(Signed))) {
        const Signed both = load_as<Signed>(words + i), first = (both << 8) >> 8, second = both >> 8;
        __builtin_memcpy(bytes + m * kRowBytes + i, &first, sizeof(first));
        __builtin_memcpy(bytes + m * kRowBytes + kWidePart + i, &second, sizeof(second));
      }
    }
  }
};

// Lines of packed i4 that a single tile asks for in a step of expanded ones. To expand them asks for the others.
constexpr int32_t kI4Fresh = 1;

// acc += codes . words of one group. The low nibbles hold the group's first half, the high ones its second.
template <Codes C, int32_t M>
LEGATO_INLINE void run_group(DotI8::Acc (&acc)[M][kBlockVecs], int32_t steps, const uint8_t* codes,
                             const uint8_t* words, int64_t row_bytes, Ahead& ahead) {
  constexpr int32_t kFresh = C == Codes::i4 ? kI4Fresh : DotI8::kFreshLines;
  if constexpr (kExpanded<C>) {
    run_steps<DotNibbles, M, 8>(acc, codes, words, row_bytes, steps, ahead);
  } else if constexpr (!kPacked<C> && DotI8::kSubs == 2) {
    const WideWords<M> wide(words, row_bytes, steps * kWord);
    run_steps<DotI8, M, 8, kFresh>(acc, codes, wide.bytes, wide.kRowBytes, steps, ahead);
  } else if constexpr (!kPacked<C>) {
    run_steps<DotI8, M, 8, kFresh>(acc, codes, words, row_bytes, steps, ahead);
  } else {
    run_steps<DotLow, M>(acc, codes, words, row_bytes, steps / 2, ahead);
    run_steps<DotHigh, M>(acc, codes, words + steps / 2 * kWord, row_bytes, steps / 2, ahead);
  }
}

// The factors of 16 (kLanes) columns.
template <Codes C>
LEGATO_INLINE Vf load_factors(const uint8_t* p) {
  if constexpr (kExpanded<C>) return load_as<Vf>(p);
  return load_f16(reinterpret_cast<const uint16_t*>(p));
}

// scale * sum of the next activation groups of each row, as many as a vector holds.
template <int32_t M>
struct Offsets {
  alignas(64) float of[M][kLanes];

  LEGATO_INLINE void fill(const float* scales, const int32_t* sums, int64_t groups, int32_t n) {
    LEGATO_UNROLL for (int32_t m = 0; m < M; ++m) {
      const Vf bits = load_n(reinterpret_cast<const float*>(sums + m * groups), n);
      const Vf whole = __builtin_convertvector(reinterpret_cast<Ints>(bits), Vf);
      store(of[m], load_n(scales + m * groups, n) * whole);
    }
  }
};

// y += scale * (d * acc) + m * (scale * sum), where scale and sum are the activation group's.
template <Codes C, int32_t M>
LEGATO_INLINE void add_group(const DotI8::Acc (&acc)[M][kBlockVecs], const uint8_t* factors, const float* scales,
                             const Offsets<M>& offsets, int32_t at, int64_t groups, float* y) {
  Vf d[kBlockVecs], m_[kBlockVecs];
  LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) {
    if constexpr (!kPerChannel<C>) d[v] = load_factors<C>(factors + v * kLanes * kFactorBytes<C>);
    if constexpr (kHasMin<C>) m_[v] = load_factors<C>(factors + (kPanel + v * kLanes) * kFactorBytes<C>);
  }
  LEGATO_UNROLL for (int32_t m = 0; m < M; ++m) {
    const Vf scale = splat(scales[m * groups]);
    Vf offset;
    if constexpr (kHasMin<C>) offset = splat(offsets.of[m][at]);
    LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) {
      float* out = y + m * kPanel + v * kLanes;
      Vf product = DotI8::to_float(acc[m][v]);
      if constexpr (!kPerChannel<C>) product = product * d[v];
      Vf total = fma(product, scale, load(out));
      if constexpr (kHasMin<C>) total = fma(m_[v], offset, total);
      store(out, total);
    }
  }
}

template <Codes C, int32_t M>
void code_tile(const LinearArgs& args, int32_t row, const Run& run, Ahead& ahead_of_tile, float* y) {
  const Acts& x = args.x;
  const int32_t group = x.group;
  const CodeShape shape = code_shape<C>(run.k, group);
  const int32_t zero_point = kPerChannel<C> ? 0 : args.w.zero + (C == Codes::i8_group ? 128 : 0);
  const int64_t row_bytes = x.k_pad, act_groups = x.k_pad / group;
  const int64_t first_group = row * act_groups + run.k_begin / group;
  Ahead ahead = ahead_of_tile;  // a copy can live in registers
  for (int32_t column = 0; column < kPanel; column += kBlockColumns) {
    const uint8_t* words = static_cast<const uint8_t*>(x.data) + row * row_bytes + run.k_begin;
    const float* scales = x.scales + first_group;
    const int32_t* sums = x.sums + first_group;
    const uint8_t* header = run.weights;
    Offsets<M> offsets;
    for (int32_t g = 0; g < shape.groups; ++g, header += shape.group_bytes) {
      const uint8_t* codes = header + shape.header_bytes + column * kWord;
      if constexpr (kHasMin<C>) {
        if (g % kLanes == 0) offsets.fill(scales, sums, act_groups, smaller(shape.groups - g, kLanes));
      }
      DotI8::Acc acc[M][kBlockVecs];
      LEGATO_UNROLL for (int32_t m = 0; m < M; ++m) {
        LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) acc[m][v] = DotI8::none();
      }
      if (zero_point != 0) {
        LEGATO_UNROLL for (int32_t m = 0; m < M; ++m) {
          const DotI8::Acc start = DotI8::start(-zero_point * sums[m * act_groups]);
          LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) acc[m][v] = start;
        }
      }
      run_group<C, M>(acc, shape.steps, codes, words, row_bytes, ahead);
      add_group<C, M>(acc, header + column * kFactorBytes<C>, scales, offsets, g % kLanes, act_groups, y + column);
      // y is read again for the next group: kept in registers, it would push the accumulators onto the stack.
      __asm__ volatile("" ::: "memory");
      words += group;
      ++scales;
      ++sums;
    }
  }
  ahead_of_tile = ahead;
}

// What the zero point takes away from each product of a row, with weights of one scale per channel (before that scale).
LEGATO_INLINE float zero_point_share(const Acts& x, int32_t zero_point, int64_t row) {
  const int32_t groups = x.k_pad / x.group;
  const float* scales = x.scales + row * groups;
  const float* sums = reinterpret_cast<const float*>(x.sums + row * groups);  // as bits
  Vf total = zero();
  for (int32_t g = 0; g < groups; g += kLanes) {
    const int32_t n = smaller(groups - g, kLanes);
    const Vf whole = __builtin_convertvector(reinterpret_cast<Ints>(load_n(sums + g, n)), Vf);
    total = fma(load_n(scales + g, n), whole, total);
  }
  return -static_cast<float>(zero_point) * sum(total);
}
