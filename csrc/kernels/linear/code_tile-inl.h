// Register tiles of i8 and q4 weights: an exact integer sum per activation group, added up in f32 in order of k.
//
// The zero point enters through the exact sums of the activations: sum((q - zero) a) = sum(q a) - zero sum(a).

enum class Codes : int32_t { i8_channel, i8_group, q4, q4_min };

// Groups of a panel, and the parts of a group that one activation group covers.
struct CodeShape {
  int32_t groups;
  int32_t parts;
  int32_t steps;  // of a part
  int64_t header_bytes;
  int64_t group_bytes;
};

template <Codes C>
LEGATO_INLINE CodeShape code_shape(const Weight& w, int32_t part) {
  const int32_t group = C == Codes::i8_channel ? part : w.group;
  const int32_t code_bytes = (C == Codes::i8_channel || C == Codes::i8_group ? group : group / 2) * kPanel;
  const int32_t header_bytes = C == Codes::i8_channel ? 0 : (C == Codes::q4_min ? 2 : 1) * kPanel * 2;
  return {w.k_pad / group, group / part, part / kWord, header_bytes, header_bytes + code_bytes};
}

// acc += codes . words of one part of a group. The low nibbles hold the group's first half, the high ones its second.
template <Codes C, int32_t M>
LEGATO_INLINE void run_part(DotI8::Acc (&acc)[M][kBlockVecs], const CodeShape& shape, int32_t part,
                            const uint8_t* codes, const uint8_t* words, int64_t row_bytes, Ahead& ahead) {
  const int64_t part_bytes = static_cast<int64_t>(shape.steps) * kPanel * kWord;
  if constexpr (C == Codes::i8_channel || C == Codes::i8_group) {
    run_steps<DotI8, M>(acc, codes + part * part_bytes, words, row_bytes, shape.steps, ahead);
  } else {
    const int32_t half = shape.parts / 2;  // 0: the part is the whole group, half low and half high
    const int32_t low_steps = half == 0 ? shape.steps / 2 : part < half ? shape.steps : 0;
    const uint8_t* lines = codes + (part < half ? part : part - half) * part_bytes;
    run_steps<DotLow, M>(acc, lines, words, row_bytes, low_steps, ahead);
    run_steps<DotHigh, M>(acc, lines, words + low_steps * kWord, row_bytes, shape.steps - low_steps, ahead);
  }
}

// y += scale * (d * acc) + m * (scale * sum), where scale and sum are the activation group's.
template <Codes C, int32_t M>
LEGATO_INLINE void add_group(const DotI8::Acc (&acc)[M][kBlockVecs], const uint8_t* header, const float* scales,
                             const int32_t* sums, int64_t groups, float* y) {
  const uint16_t* factors = reinterpret_cast<const uint16_t*>(header);
  Vf d[kBlockVecs], m_[kBlockVecs];
  LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) {
    if constexpr (C != Codes::i8_channel) d[v] = load_f16(factors + v * kLanes);
    if constexpr (C == Codes::q4_min) m_[v] = load_f16(factors + kPanel + v * kLanes);
  }
  LEGATO_UNROLL for (int32_t m = 0; m < M; ++m) {
    const float scale = scales[m * groups];
    const Vf offset = splat(scale * static_cast<float>(sums[m * groups]));
    LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) {
      float* out = y + m * kPanel + v * kLanes;
      Vf product = DotI8::to_float(acc[m][v]);
      if constexpr (C != Codes::i8_channel) product = product * d[v];
      Vf total = fma(product, splat(scale), load(out));
      if constexpr (C == Codes::q4_min) total = fma(m_[v], offset, total);
      store(out, total);
    }
  }
}

template <Codes C, int32_t M>
void code_tile(const LinearArgs& args, int32_t row, const uint8_t* panel, Ahead ahead, float* y) {
  constexpr int32_t kOffset = C == Codes::i8_channel || C == Codes::i8_group ? 128 : 0;
  const Acts& x = args.x;
  const CodeShape shape = code_shape<C>(args.w, x.group);
  const int32_t zero_point = args.w.zero + kOffset;
  const int64_t row_bytes = x.k_pad, act_groups = x.k_pad / x.group;
  const int32_t group = x.group;
  for (int32_t i = 0; i < M * kPanel; i += kLanes) store(y + i, zero());
  for (int32_t column = 0; column < kPanel; column += kBlockColumns) {
    const uint8_t* words = static_cast<const uint8_t*>(x.data) + row * row_bytes;
    const float* scales = x.scales + row * act_groups;
    const int32_t* sums = x.sums + row * act_groups;
    const uint8_t* header = panel;
    for (int32_t g = 0; g < shape.groups; ++g, header += shape.group_bytes) {
      const uint8_t* codes = header + shape.header_bytes + column * kWord;
      for (int32_t part = 0; part < shape.parts; ++part) {
        DotI8::Acc acc[M][kBlockVecs];
        LEGATO_UNROLL for (int32_t m = 0; m < M; ++m) {
          const DotI8::Acc start = DotI8::start(-zero_point * sums[m * act_groups]);
          LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) acc[m][v] = start;
        }
        run_part<C, M>(acc, shape, part, codes, words, row_bytes, ahead);
        add_group<C, M>(acc, header + column * 2, scales, sums, act_groups, y + column);
        // y is read again for the next group: kept in registers, it would push the accumulators onto the stack.
        __asm__ volatile("" ::: "memory");
        words += group;
        ++scales;
        ++sums;
      }
    }
  }
}
