// Register tiles of float weights: up to 6 rows by one panel of 64 output columns, in blocks of columns.
//
// Accumulators live in registers, so every loop that indexes them is unrolled by force: one rolled loop would put the
// whole array on the stack.

// Of 32 registers: 24 accumulators, 4 lines, 1 word; of 16: 12, 2 and 1.
constexpr int32_t kBlockVecs = kLanes == 16 ? 4 : 2;
constexpr int32_t kBlockColumns = kBlockVecs * kLanes;

constexpr int32_t kCacheLine = 64;
constexpr int32_t kPrefetchBytes = 8192;
constexpr int32_t kNearBytes = 3072;
constexpr int32_t kRunLines = 16;
constexpr int32_t kUnrolled = 4;  // steps; the shortest run, half a group of 32 nibbles, has as many

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LEGATO_UNROLL  // with every access checked, the unrolled code would take minutes to compile
#else
#define LEGATO_UNROLL _Pragma("GCC unroll 12")
#endif

// Weights to ask for while a tile is computed: from `at`, `lines` cache lines in 4 steps; a tile of one row asks for as
// many as it reads. The hardware's own prefetch stops at the end of each 4 KiB page. A tile of several blocks of
// columns runs on from block to block, into the panels behind: to ask in its first block only is slower.
//
// A tile that runs ahead in its own panel asks for kRunLines (of i4 for fewer, once), and for each line twice:
// kPrefetchBytes ahead into the second cache, kNearBytes ahead into the first. Operations that wait for a line of the
// second cache fill the queue in which those of later lines have to stand, so that memory rests; where a line is one
// operation the first is enough.
struct Ahead {
  const uint8_t* at;
  int32_t lines;

  LEGATO_INLINE bool runs() const { return lines == kRunLines; }

  LEGATO_INLINE void ask(int32_t count) {
    LEGATO_UNROLL for (int32_t i = 0; i < count; ++i, at += kCacheLine) __builtin_prefetch(at, 0, 2);
  }

  LEGATO_INLINE void ask_twice(int32_t count) {
    LEGATO_UNROLL for (int32_t i = 0; i < count; ++i) {
      __builtin_prefetch(at - kPrefetchBytes + kNearBytes, 0, 3);
      ask(1);
    }
  }
};

// K of a panel that a tile is multiplied with at once: the whole panel, or a part of it that was expanded beforehand.
struct Run {
  const uint8_t* weights;
  int32_t k_begin;
  int32_t k;
  float* kept;  // where a tile that keeps its lines puts them: [k][64]
};

// y[row of the tile][64] += the run's products, before bias and activation.
using TileFn = void (*)(const LinearArgs& args, int32_t row, const Run& run, Ahead& ahead, float* y);

// acc[m][v] += line v . word m, for one step; `lines` begins at this block's first column of its line, `kept` too.
template <class Dot, int32_t M>
LEGATO_INLINE void run_step(typename Dot::Acc (&acc)[M][kBlockVecs], const uint8_t* lines, const uint8_t* words,
                            int64_t row_bytes, float* kept) {
  LEGATO_UNROLL for (int32_t sub = 0; sub < Dot::kSubs; ++sub) {
    typename Dot::Line line[kBlockVecs];
    LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) {
      line[v] = Dot::line(lines + v * kLanes * Dot::kColumnBytes, sub);
      if constexpr (Dot::kKeeps) store(kept + (sub == 0 ? kPanel : 0) + v * kLanes, line[v]);
    }
    LEGATO_UNROLL for (int32_t m = 0; m < M; ++m) {
      const typename Dot::Line word = Dot::word(words + m * row_bytes, sub);
      LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) acc[m][v] = Dot::mac(acc[m][v], line[v], word);
    }
  }
}

// `count` steps, a multiple of U.
template <class Dot, int32_t M, int32_t U = kUnrolled, int32_t kFresh = Dot::kFreshLines>
LEGATO_INLINE void run_steps(typename Dot::Acc (&acc)[M][kBlockVecs], const uint8_t* lines, const uint8_t* words,
                             int64_t row_bytes, int32_t count, Ahead& ahead, float* kept = nullptr) {
  for (int32_t s = 0; s < count; s += U) {
    if constexpr (M > 1) {
      for (int32_t i = 0; i < ahead.lines; ++i) ahead.runs() ? ahead.ask_twice(U / 4) : ahead.ask(U / 4);
    }
    LEGATO_UNROLL for (int32_t i = 0; i < U; ++i) {
      if constexpr (M == 1) Dot::kHeavy ? ahead.ask_twice(kFresh) : ahead.ask(kFresh);
      run_step<Dot, M>(acc, lines + i * Dot::kStepBytes, words + i * Dot::kWordBytes, row_bytes, kept);
      if constexpr (Dot::kKeeps) kept += 2 * kPanel;
    }
    lines += U * Dot::kStepBytes;
    words += U * Dot::kWordBytes;
  }
}

// f32, f16 and bf16 weights: one sum over the whole of K.
template <class Dot, int32_t M>
void float_tile(const LinearArgs& args, int32_t row, const Run& run, Ahead& ahead, float* y) {
  constexpr int32_t kValues = Dot::kWordValues;
  const int64_t row_bytes = static_cast<int64_t>(args.x.k_pad) / kValues * Dot::kWordBytes;
  const uint8_t* words =
      static_cast<const uint8_t*>(args.x.data) + row * row_bytes + run.k_begin / kValues * Dot::kWordBytes;
  for (int32_t column = 0; column < kPanel; column += kBlockColumns) {
    Vf acc[M][kBlockVecs];
    LEGATO_UNROLL for (int32_t m = 0; m < M; ++m) {
      LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) acc[m][v] = load(y + m * kPanel + column + v * kLanes);
    }
    run_steps<Dot, M>(acc, run.weights + column * Dot::kColumnBytes, words, row_bytes, run.k / kValues, ahead,
                      Dot::kKeeps ? run.kept + column : nullptr);
    LEGATO_UNROLL for (int32_t m = 0; m < M; ++m) {
      LEGATO_UNROLL for (int32_t v = 0; v < kBlockVecs; ++v) store(y + m * kPanel + column + v * kLanes, acc[m][v]);
    }
  }
}
