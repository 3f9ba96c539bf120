// The two products of attention over cache tiles, for a block of queries held in registers.

constexpr int kTileVectors = kKvTile / kLanes;  // vectors that hold one value of each slot of a tile
constexpr int64_t kLineBytes = kKvTile * 4;     // of a K tile
constexpr int64_t kVectorBytes = kLanes * 4;

// So few queries of a block leave memory time to rest, unless what is read next is asked for all the while: the first
// half of V for scores, the second half for softmax, the next split's K for V.
constexpr int kAheadQueries = 4;
constexpr int kAheadTiles = 2;  // V comes from the second cache to the first so much before it is read

// scores[m][slots of vector j] = sum over d of q[m][d] * K[d][slots], for N vectors from `k`; `next` are read after
// them.
template <class Cache, int M, int N>
LEGATO_INLINE void score_vectors(const typename Cache::Value* q, int64_t q_stride, const uint8_t* const* k,
                                 const uint8_t* const* next, int32_t lines, float* scores) {
  const int64_t tile_bytes = lines * kLineBytes;
  Vf acc[M][N];
  LEGATO_UNROLL for (int m = 0; m < M; ++m) { LEGATO_UNROLL for (int j = 0; j < N; ++j) acc[m][j] = zero(); }
  if constexpr (Cache::kScaled) {
    LEGATO_UNROLL for (int j = 0; j < N; ++j) __builtin_prefetch(k[j] + 2 * tile_bytes);  // scales
  }
  for (int32_t i = 0; i < lines; ++i) {
    typename Cache::Line line[N];
    LEGATO_UNROLL for (int j = 0; j < N; ++j) {
      // Tiles lie anywhere, and the hardware's own prefetch ends with each. V, behind K, is read when all scores are
      // known.
      __builtin_prefetch(next[j] + i * kLineBytes);
      if (M > kAheadQueries || 2 * i < lines) __builtin_prefetch(k[j] + tile_bytes + i * kLineBytes, 0, 2);
      line[j] = Cache::line(k[j] + i * kLineBytes);
    }
    LEGATO_UNROLL for (int m = 0; m < M; ++m) {
      LEGATO_UNROLL for (int j = 0; j < N; ++j) {
        acc[m][j] = Cache::mac(acc[m][j], line[j], q + m * q_stride + i * Cache::kValues);
      }
    }
  }
  LEGATO_UNROLL for (int m = 0; m < M; ++m) {
    LEGATO_UNROLL for (int j = 0; j < N; ++j) store(scores + m * kKvSplit + j * kLanes, acc[m][j]);
  }
}

// Raw scores of M queries for tiles [begin, end) of a split; tile t fills scores[m][16 t .. 16 t + 15].
template <class Cache, int M>
void score_tiles(const typename Cache::Value* q, int64_t q_stride, const uint8_t* const* tiles, int32_t begin,
                 int32_t end, int32_t lines, float* scores) {
  int32_t j = begin * kTileVectors;
  const int32_t last = end * kTileVectors;
  const auto at = [tiles](int32_t v) { return tiles[v / kTileVectors] + v % kTileVectors * kVectorBytes; };
  for (; j + 2 <= last; j += 2) {
    const uint8_t* const k[2] = {at(j), at(j + 1)};
    const uint8_t* const next[2] = {at(smaller(j + 2, last - 1)), at(smaller(j + 3, last - 1))};
    score_vectors<Cache, M, 2>(q, q_stride, k, next, lines, scores + j * kLanes);
  }
  if (j < last) {
    const uint8_t* const k[1] = {at(j)};
    score_vectors<Cache, M, 1>(q, q_stride, k, k, lines, scores + j * kLanes);
  }
}

// acc[m][columns] += sum over slots of p[m][slot] * V[slot][columns], for N vectors of columns from byte `column`, over
// lines [begin, end) of a split. `next`: readable tiles to ask for, the same lines of each.
template <class Cache, int M, int N>
LEGATO_INLINE void weigh_columns(const typename Cache::Value* p, const uint8_t* const* tiles,
                                 const uint8_t* const* next, int32_t begin, int32_t end, int64_t line_bytes,
                                 int64_t column, float* const* acc_rows) {
  constexpr int32_t kLines = kKvTile / Cache::kValues;
  Vf acc[M][N];
  LEGATO_UNROLL for (int m = 0; m < M; ++m) {
    LEGATO_UNROLL for (int j = 0; j < N; ++j) acc[m][j] = load(acc_rows[m] + column / 4 + j * kLanes);
  }
  for (int32_t t = begin / kLines; t * kLines < end; ++t) {
    const int32_t last = smaller(end - t * kLines, kLines);
    int32_t i = larger(begin - t * kLines, 0);
    const uint8_t* v = tiles[t] + i * line_bytes + column;
    for (; i < last; ++i, v += line_bytes) {
      typename Cache::Line line[N];
      LEGATO_UNROLL for (int j = 0; j < N; ++j) {
        if constexpr (M <= kAheadQueries) {
          const int64_t at = v - tiles[t] + j * kVectorBytes;
          __builtin_prefetch(tiles[smaller(t + kAheadTiles, (end - 1) / kLines)] + at);
          __builtin_prefetch(next[t] + at, 0, 2);
        }
        line[j] = Cache::line(v + j * kVectorBytes);
      }
      LEGATO_UNROLL for (int m = 0; m < M; ++m) {
        LEGATO_UNROLL for (int j = 0; j < N; ++j) {
          acc[m][j] = Cache::mac(acc[m][j], line[j], p + m * kKvSplit + t * kKvTile + i * Cache::kValues);
        }
      }
    }
  }
  LEGATO_UNROLL for (int m = 0; m < M; ++m) {
    LEGATO_UNROLL for (int j = 0; j < N; ++j) store(acc_rows[m] + column / 4 + j * kLanes, acc[m][j]);
  }
}

template <class Cache, int M>
void weigh_tiles(const typename Cache::Value* p, const uint8_t* const* tiles, const uint8_t* const* next, int32_t begin,
                 int32_t end, int32_t head_pad, float* const* acc_rows) {
  constexpr int64_t kStep = Cache::kColumns * kVectorBytes;
  const int64_t line_bytes = static_cast<int64_t>(head_pad) * 4;
  int64_t column = 0;
  for (; column + kStep <= line_bytes; column += kStep) {
    weigh_columns<Cache, M, Cache::kColumns>(p, tiles, next, begin, end, line_bytes, column, acc_rows);
  }
  for (; column < line_bytes; column += kVectorBytes) {
    weigh_columns<Cache, M, 1>(p, tiles, next, begin, end, line_bytes, column, acc_rows);
  }
}

// The same for one query and only slots [lo, hi) of one tile. The lines outside are not read, and the half of a pair
// outside is zeroed: a stale slot may hold a NaN. The slots inside are summed exactly as in a whole tile.
template <class Cache>
void weigh_part(const typename Cache::Value* p, const uint8_t* tile, int32_t lo, int32_t hi, int32_t head_pad,
                float* acc) {
  constexpr int kValues = Cache::kValues;
  const int64_t line_bytes = static_cast<int64_t>(head_pad) * 4;
  for (int64_t column = 0; column < line_bytes; column += kVectorBytes) {
    Vf sum = load(acc + column / 4);
    for (int32_t i = lo / kValues; i * kValues < hi; ++i) {
      const typename Cache::Line line = Cache::line(tile + i * line_bytes + column);
      sum = Cache::mac(sum, Cache::keep(line, i * kValues >= lo, i * kValues + 1 < hi), p + i * kValues);
    }
    store(acc + column / 4, sum);
  }
}
