// Register tiles of float weights: up to 6 rows by one panel of 64 output columns, in blocks of columns.
//
// Accumulators live in registers, so every loop that indexes them is unrolled by force: one rolled loop would put the
// whole array on the stack.

// Of 32 registers: 24 accumulators, 4 lines, 1 word; of 16: 12, 2 and 1.
constexpr int32_t kBlockVecs = kLanes == 16 ? 4 : 2;
constexpr int32_t kBlockColumns = kBlockVecs * kLanes;

#define LEGATO_UNROLL _Pragma("GCC unroll 8")

// Writes y[row of the tile][64]: the products, before bias and activation.
using TileFn = void (*)(const LinearArgs& args, int32_t row, const uint8_t* panel, float* y);

// acc[m][v] += line v . word m, over `count` steps; `lines` begins at this block's first column of the first line.
template <class Dot, int32_t M>
LEGATO_INLINE void run_steps(typename Dot::Acc (&acc)[M][kBlockVecs], const uint8_t* lines, const uint8_t* words,
                             int64_t row_bytes, int32_t count) {
  constexpr int32_t kVecBytes = kLanes * Dot::kColumnBytes;
  for (int32_t s = 0; s < count; ++s) {
    LEGATO_UNROLL for (int32_t sub = 0; sub < Dot::kSubs; ++sub) {
      typename Dot::Line line[kBlockVecs];
      LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) line[v] = Dot::line(lines + v * kVecBytes, sub);
      LEGATO_UNROLL for (int32_t m = 0; m < M; ++m) {
        const typename Dot::Line word = Dot::word(words + m * row_bytes, sub);
        LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) acc[m][v] = Dot::mac(acc[m][v], line[v], word);
      }
    }
    lines += kPanel * Dot::kColumnBytes;
    words += kWord;
  }
}

// f32, f16 and bf16 weights: one sum over the whole of K.
template <class Dot, int32_t M>
void float_tile(const LinearArgs& args, int32_t row, const uint8_t* panel, float* y) {
  const int64_t row_bytes = static_cast<int64_t>(args.x.k_pad) * (args.x.type == ActType::f32 ? 4 : 2);
  const uint8_t* words = static_cast<const uint8_t*>(args.x.data) + row * row_bytes;
  for (int32_t column = 0; column < kPanel; column += kBlockColumns) {
    Vf acc[M][kBlockVecs];
    LEGATO_UNROLL for (int32_t m = 0; m < M; ++m) {
      LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) acc[m][v] = zero();
    }
    const int32_t steps = static_cast<int32_t>(row_bytes / kWord);
    run_steps<Dot, M>(acc, panel + column * Dot::kColumnBytes, words, row_bytes, steps);
    LEGATO_UNROLL for (int32_t m = 0; m < M; ++m) {
      LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) store(y + m * kPanel + column + v * kLanes, acc[m][v]);
    }
  }
}
