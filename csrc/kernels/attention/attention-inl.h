// Paged attention: prefill, decode and verify rows alike.
//
// A row and a head ("query") see their positions in splits of 256 absolute positions. Each split gives a partial
// result (largest score, sum of exponentials, weighted sum of V), and the partials are merged in ascending order. All
// of it is arithmetic of that query alone, whichever queries share an item or a block of registers.

constexpr float kLog2E = 1.44269504f;   // scores are in units of which one doubles a probability
constexpr int32_t kPartialHeader = 16;  // floats before acc: the largest score, the sum, unused
constexpr int32_t kSplitTiles = kKvSplit / kKvTile;

// A partial result: p[0] largest score, p[1] sum (0: no position), p[16..] acc[head_pad].
LEGATO_INLINE float* partial_acc(float* partial) { return partial + kPartialHeader; }

LEGATO_INLINE void merge_partial(float* into, const float* from, int32_t head_pad) {
  if (from[1] == 0.0f) return;
  if (into[1] == 0.0f) {
    __builtin_memcpy(into, from, static_cast<size_t>(kPartialHeader + head_pad) * sizeof(float));
    return;
  }
  const float top = larger(into[0], from[0]);
  const Vf a = exp2(splat(into[0] - top)), b = exp2(splat(from[0] - top));
  into[0] = top;
  into[1] = into[1] * a[0] + from[1] * b[0];
  for (int32_t d = kPartialHeader; d < kPartialHeader + head_pad; d += kLanes) {
    store(into + d, fma(load(into + d), a, load(from + d) * b));
  }
}

// Divides by the sum and writes the head's columns of the row.
LEGATO_INLINE void finish_query(const AttentionArgs& a, int64_t row, int32_t head, float* partial) {
  const int32_t dim = a.kv.head_dim;
  float* acc = partial_acc(partial);
  const Vf total = splat(partial[1]);
  for (int32_t d = 0; d < a.kv.head_pad; d += kLanes) store(acc + d, load(acc + d) / total);
  if (a.out != nullptr) {
    __builtin_memcpy(a.out + row * a.out_stride + head * dim, acc, static_cast<size_t>(dim) * sizeof(float));
    return;
  }
  store_columns(a.acts, row, head * dim, acc, dim);
  if (head == a.heads - 1) store_pad(a.acts, row);
}

// Slots [lo, hi) of a split that one query sees; empty when lo >= hi.
struct Span {
  int32_t lo, hi;
  bool empty() const { return lo >= hi; }
  int32_t first_tile() const { return lo / kKvTile; }
  int32_t end_tile() const { return (hi + kKvTile - 1) / kKvTile; }
};

LEGATO_INLINE Span span_of(const AttentionArgs& a, int32_t row, int32_t split) {
  const int32_t position = a.positions[row], begin = split * kKvSplit;
  const int32_t oldest = a.window > 0 ? larger(0, position - a.window + 1) : 0;
  return {larger(oldest - begin, 0), smaller(position + 1 - begin, kKvSplit)};
}

// The thread's scratch of one item, in this order. kQueries: of the cache.
template <class Cache>
struct Scratch {
  using Value = typename Cache::Value;
  float* running;   // [queries] partials: all splits so far
  float* partials;  // [kQueries] partials: this split
  float* scores;    // [kQueries][256]
  Value* weights;   // [kQueries][256] probabilities
  Value* q;         // [queries][head_pad]

  Scratch(float* memory, int32_t queries, int64_t stride) {
    running = memory;
    partials = running + queries * stride;
    scores = partials + Cache::kQueries * stride;
    weights = reinterpret_cast<Value*>(scores + Cache::kQueries * kKvSplit);
    q = weights + Cache::kQueries * kKvSplit;
  }
};

// Slots i, i + 1, ... of a split: v where the query sees them, `other` elsewhere.
LEGATO_INLINE Vf where_seen(Span span, int32_t i, Vf v, Vf other) {
  if (i < span.lo) v = select(kAllLanes << smaller(span.lo - i, kLanes), v, other);
  if (i + kLanes > span.hi) v = select((1u << larger(span.hi - i, 0)) - 1u, v, other);
  return v;
}

// Of the second half of each V tile behind `keys`, to be asked for: every step-th byte from the first.
struct Coming {
  const uint8_t* const* keys;
  int64_t half, first, step;

  LEGATO_INLINE void ask(int32_t tile) const {
    for (int64_t at = first; at < half; at += step) __builtin_prefetch(keys[tile] + 3 * half + at, 0, 2);
  }
};

// Query m's share.
template <int M>
LEGATO_INLINE Coming coming_of(const KvView& kv, const uint8_t* const* keys, int m) {
  return {keys, M <= kAheadQueries ? kv.tile_bytes / 2 : 0, m * kCacheLine, M * kCacheLine};
}

enum class Side : int32_t { key = 0, value = 1 };

// The scales of slots i, i + 1, ... of a split, whose K tiles are `keys`.
LEGATO_INLINE Vf slot_scales(const KvView& kv, const uint8_t* const* keys, int32_t i, Side side) {
  const uint32_t slot = static_cast<uint32_t>(i);
  const uint16_t* scales = cache_scales(kv, keys[slot / kKvTile]) + static_cast<int32_t>(side) * kKvTile;
  return load_bf16(scales + slot % kKvTile);
}

// What M queries share of a split: its slots are looked through once for all of them, with M chains of arithmetic.
template <int M>
struct Block {
  const Span* spans;
  const uint8_t* const* keys;  // K tiles, V behind each
  int32_t begin, end;          // tiles that any query sees, 0 and 0 if there are none

  LEGATO_INLINE Block(const Span* spans, const uint8_t* const* keys)
      : spans(spans), keys(keys), begin(kSplitTiles), end(0) {
    for (int m = 0; m < M; ++m) {
      if (spans[m].empty()) continue;
      begin = smaller(begin, spans[m].first_tile());
      end = larger(end, spans[m].end_tile());
    }
    begin = smaller(begin, end);
  }
};

// scores[m][slots] times factors[m] and the scales of K, and -inf where the query does not see the slot; top: the
// largest of each query.
template <class Cache, int M>
LEGATO_INLINE void scale_scores(const KvView& kv, const Block<M>& block, const float* factors, float* scores,
                                float* top) {
  const Vf lowest = splat(-kInfinity);
  Vf tops[M];
  LEGATO_UNROLL for (int m = 0; m < M; ++m) tops[m] = lowest;
  for (int32_t i = block.begin * kKvTile; i < block.end * kKvTile; i += kLanes) {
    Vf scale = splat(1.0f);
    if constexpr (Cache::kScaled) scale = slot_scales(kv, block.keys, i, Side::key);
    LEGATO_UNROLL for (int m = 0; m < M; ++m) {
      float* at = scores + m * kKvSplit + i;
      const Vf s = where_seen(block.spans[m], i, load(at) * (splat(factors[m]) * scale), lowest);
      store(at, s);
      tops[m] = max(tops[m], s);
    }
  }
  for (int m = 0; m < M; ++m) top[m] = largest(tops[m]);
}

// Scores, still without factors[m] and the scales of K, to probabilities relative to the largest, times the scales of
// V. partials[m]: the largest score and the sum of the probabilities; most[m]: the largest weight of each lane, a NaN
// if any is one. Asks for coming[m] meanwhile. What it leaves for a query that sees nothing has no meaning.
template <class Cache, int M>
LEGATO_INLINE void exponentiate(const KvView& kv, const Block<M>& block, const float* factors, const Coming* coming,
                                float* scores, typename Cache::Value* weights, float* const* partials, Vf* most) {
  float top[M];
  scale_scores<Cache, M>(kv, block, factors, scores, top);
  Vf total[M];
  LEGATO_UNROLL for (int m = 0; m < M; ++m) total[m] = most[m] = zero();
  for (int32_t i = block.begin * kKvTile; i < block.end * kKvTile; i += kLanes) {
    Vf scale = splat(1.0f);
    if constexpr (Cache::kScaled) scale = slot_scales(kv, block.keys, i, Side::value) * splat(Cache::kLift);
    LEGATO_UNROLL for (int m = 0; m < M; ++m) {
      coming[m].ask(i / kKvTile);
      Vf w = exp2(load(scores + m * kKvSplit + i) - splat(top[m]));
      total[m] = total[m] + w;
      if constexpr (Cache::kScaled) {
        w = where_seen(block.spans[m], i, w * scale, zero());  // the scale of a stale slot may be a NaN
      }
      if constexpr (Cache::kFixed) most[m] = larger_bits(most[m], w);
      Cache::put(weights + m * kKvSplit + i, w);
    }
  }
  for (int m = 0; m < M; ++m) {
    partials[m][0] = top[m];
    partials[m][1] = block.spans[m].empty() ? 0.0f : sum(total[m]);
  }
}

// Slots [span.lo, span.hi) of one query, tile by tile.
template <class Cache>
LEGATO_INLINE void weigh_alone(const typename Cache::Value* weights, const uint8_t* const* tiles, Span span,
                               int32_t head_pad, float* acc) {
  if (span.empty()) return;
  for (int32_t t = span.first_tile(); t < span.end_tile(); ++t) {
    const int32_t lo = larger(span.lo - t * kKvTile, 0), hi = smaller(span.hi - t * kKvTile, kKvTile);
    weigh_part<Cache>(weights + t * kKvTile, tiles[t], lo, hi, head_pad, acc);
  }
}

// V lines of a split.
struct Lines {
  int32_t begin, end;
};

// Those of which all M queries, but for any that sees nothing, see every slot. Without one: empty, behind all tiles.
template <class Cache, int M>
LEGATO_INLINE Lines lines_of_all(const Block<M>& block) {
  constexpr int32_t kLines = kKvTile / Cache::kValues;
  Lines all = {block.begin * kLines, block.end * kLines};
  for (int m = 0; m < M; ++m) {
    const Span span = block.spans[m];
    if (span.empty()) continue;
    all.begin = larger(all.begin, (span.lo + Cache::kValues - 1) / Cache::kValues);
    all.end = smaller(all.end, span.hi / Cache::kValues);
  }
  if (all.begin >= all.end) all.begin = all.end = block.end * kLines;
  return all;
}

LEGATO_INLINE void multiply(float* x, float factor, int32_t n) {
  for (int32_t i = 0; i < n; i += kLanes) store(x + i, load(x + i) * splat(factor));
}

// One split of M queries: partials[m] where spans[m] is not empty. `next`: the K tiles of the split that follows.
template <class Cache, int M>
void attend_queries(const AttentionArgs& a, const typename Cache::Value* q, const Span* spans,
                    const uint8_t* const* keys, const uint8_t* const* next, float* scores,
                    typename Cache::Value* weights, float* const* partials) {
  const int32_t head_pad = a.kv.head_pad;
  const Block<M> block(spans, keys);
  float factors[M];
  Coming coming[M];
  for (int m = 0; m < M; ++m) {
    factors[m] = a.scale * kLog2E * Cache::kUnit;
    coming[m] = coming_of<M>(a.kv, keys, m);
  }
  score_tiles<Cache, M>(q, head_pad, keys, block.begin, block.end, head_pad / Cache::kValues, scores);
  Vf most[M];
  exponentiate<Cache, M>(a.kv, block, factors, coming, scores, weights, partials, most);
  const uint8_t* values[kSplitTiles];
  for (int32_t t = block.begin; t < block.end; ++t) values[t] = keys[t] + a.kv.tile_bytes;
  const Lines shared = lines_of_all<Cache, M>(block);
  float* acc[M];
  for (int m = 0; m < M; ++m) {
    acc[m] = partial_acc(partials[m]);
    for (int32_t d = 0; d < head_pad; d += kLanes) store(acc[m] + d, zero());
    const Span before = {spans[m].lo, smaller(shared.begin * Cache::kValues, spans[m].hi)};
    weigh_alone<Cache>(weights + m * kKvSplit, values, before, head_pad, acc[m]);
  }
  weigh_tiles<Cache, M>(weights, values, next, shared.begin, shared.end, head_pad, acc);
  for (int m = 0; m < M; ++m) {
    const Span behind = {larger(shared.end * Cache::kValues, spans[m].lo), spans[m].hi};
    weigh_alone<Cache>(weights + m * kKvSplit, values, behind, head_pad, acc[m]);
  }
  if constexpr (Cache::kUnit != 1.0f) {
    for (int m = 0; m < M; ++m) {
      if (!spans[m].empty()) multiply(acc[m], Cache::kUnit, head_pad);
    }
  }
}

// The same over codes. Their sums are exact, so that a tile which a query does not see may count, with weights of 0.
template <int M>
void attend_codes(const AttentionArgs& a, float* q, const Span* spans, const uint8_t* const* keys,
                  const uint8_t* const* next, float* scores, float* weights, float* const* partials) {
  const int32_t head_pad = a.kv.head_pad;
  const Block<M> block(spans, keys);
  float factors[M];
  Coming coming[M];
  for (int m = 0; m < M; ++m) {
    factors[m] = a.scale * kLog2E * Fixed(q + m * head_pad, head_pad).figures[0];
    coming[m] = coming_of<M>(a.kv, keys, m);
  }
  score_codes<M>(q, head_pad, keys, block.begin, block.end, scores);
  Vf most[M];
  exponentiate<CacheI8, M>(a.kv, block, factors, coming, scores, scores, partials, most);
  float* acc[M];
  for (int m = 0; m < M; ++m) {
    acc[m] = partial_acc(partials[m]);
    const Range range = spans[m].empty() ? Range{0.0f, false} : Range{largest(most[m]), fault_bits(most[m]) != 0};
    fix(scores + m * kKvSplit, block.begin * kKvTile, block.end * kKvTile, range,
        Fixed(weights + m * kKvSplit, kKvSplit));
  }
  const uint8_t* values[kSplitTiles];
  for (int32_t t = block.begin; t < block.end; ++t) values[t] = keys[t] + a.kv.tile_bytes;
  weigh_codes<M>(weights, values, next, block.begin, block.end, head_pad, acc);
}

template <class Cache, int M>
LEGATO_INLINE void attend_some(const AttentionArgs& a, typename Cache::Value* q, const Span* spans,
                               const uint8_t* const* keys, const uint8_t* const* next, const Scratch<Cache>& s,
                               float* const* partials) {
  if constexpr (Cache::kFixed) {
    attend_codes<M>(a, q, spans, keys, next, s.scores, s.weights, partials);
  } else {
    attend_queries<Cache, M>(a, q, spans, keys, next, s.scores, s.weights, partials);
  }
}

// How many of the queries that are left make the next block.
template <class Cache>
LEGATO_INLINE int32_t block_of(int32_t left) {
  return left >= Cache::kQueries ? Cache::kQueries : smaller(left, kFewQueries);
}

template <class Cache>
void attend_block(int32_t count, const AttentionArgs& a, typename Cache::Value* q, const Span* spans,
                  const uint8_t* const* keys, const uint8_t* const* next, const Scratch<Cache>& s,
                  float* const* partials) {
  switch (count) {
    case 1:
      return attend_some<Cache, 1>(a, q, spans, keys, next, s, partials);
    case 2:
      return attend_some<Cache, 2>(a, q, spans, keys, next, s, partials);
    case 3:
      return attend_some<Cache, 3>(a, q, spans, keys, next, s, partials);
    case 4:
      return attend_some<Cache, 4>(a, q, spans, keys, next, s, partials);
    case 5:
      if constexpr (kFewQueries >= 5) return attend_some<Cache, 5>(a, q, spans, keys, next, s, partials);
      return;
    case 6:
      if constexpr (kFewQueries >= 6) return attend_some<Cache, 6>(a, q, spans, keys, next, s, partials);
      return;
    default:
      return attend_some<Cache, Cache::kQueries>(a, q, spans, keys, next, s, partials);
  }
}

// K tiles of the slots of one split that any row of the item sees. A tile between them that none sees stands for any
// readable memory: its scores are not used.
LEGATO_INLINE void find_tiles(const AttentionArgs& a, const AttentionItem& item, int32_t split, const uint8_t** keys) {
  uint32_t seen = 0;  // a bit of each tile
  for (int32_t row = item.row_begin; row < item.row_end; ++row) {
    const Span span = span_of(a, row, split);
    if (!span.empty()) seen |= (1u << span.end_tile()) - (1u << span.first_tile());
  }
  const int32_t per_block = a.kv.tiles_per_block;
  const int32_t* block = item.block_table + split * kSplitTiles / per_block;
  int32_t tile = split * kSplitTiles % per_block;
  for (int32_t t = 0; t < kSplitTiles; ++t, ++tile) {
    if (tile == per_block) {
      tile = 0;
      ++block;
    }
    const bool any = (seen >> t & 1u) != 0;
    keys[t] = cache_tile(a.kv, any ? *block : 0, item.kv_head, any ? tile : 0);
  }
}

template <class Cache>
LEGATO_INLINE void load_query(const float* x, int32_t dim, int32_t pad, typename Cache::Value* q) {
  alignas(64) float values[kMaxHeadDim];
  for (int32_t d = 0; d < pad; d += kLanes) {
    const Vf v = load_n(x + d, larger(0, smaller(dim - d, kLanes))) * splat(Cache::kLift);
    if constexpr (Cache::kFixed) {
      store(values + d, v);
    } else {
      Cache::put(q + d, v);
    }
  }
  if constexpr (Cache::kFixed) fix(values, 0, pad, range_of(values, pad), Fixed(q, pad));
}

template <class Cache>
void load_queries(const AttentionArgs& a, const AttentionItem& item, int32_t per_row, typename Cache::Value* q) {
  const int32_t dim = a.kv.head_dim, pad = a.kv.head_pad;
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    const float* x = a.q + row * a.q_stride + static_cast<int64_t>(item.kv_head) * per_row * dim;
    for (int32_t g = 0; g < per_row; ++g, x += dim, q += pad) {
      load_query<Cache>(x, dim, pad, q);
    }
  }
}

template <class Cache>
void attend(const AttentionArgs& a, const AttentionItem& item) {
  const int32_t per_row = a.heads / a.kv.kv_heads, pad = a.kv.head_pad;
  const int32_t queries = (item.row_end - item.row_begin) * per_row;
  const int64_t stride = kPartialHeader + pad;
  const Scratch<Cache> s(item.scratch, queries, stride);
  load_queries<Cache>(a, item, per_row, s.q);
  for (int32_t m = 0; m < queries; ++m) s.running[m * stride + 1] = 0.0f;
  const uint8_t* tiles[2][kSplitTiles];
  find_tiles(a, item, item.split_begin, tiles[item.split_begin % 2]);
  for (int32_t split = item.split_begin; split < item.split_end; ++split) {
    const uint8_t* const* keys = tiles[split % 2];
    const uint8_t** next = tiles[(split + 1) % 2];
    if (split + 1 < item.split_end) {
      find_tiles(a, item, split + 1, next);
    } else if (item.next != nullptr) {
      find_tiles(a, *item.next, item.next->split_begin, next);
    } else {
      __builtin_memcpy(next, keys, sizeof(tiles[0]));  // they are in the cache
    }
    for (int32_t first = 0, count; first < queries; first += count) {
      count = block_of<Cache>(queries - first);
      Span spans[Cache::kQueries];
      float* partials[Cache::kQueries];
      for (int32_t m = 0; m < count; ++m) {
        spans[m] = span_of(a, item.row_begin + (first + m) / per_row, split);
        const int64_t entry = static_cast<int64_t>(split - item.split_begin) * queries + first + m;
        partials[m] = item.partial != nullptr ? item.partial + entry * stride : s.partials + m * stride;
        partials[m][1] = 0.0f;
      }
      attend_block<Cache>(count, a, s.q + static_cast<int64_t>(first) * pad, spans, keys, next, s, partials);
      if (item.partial != nullptr) continue;
      for (int32_t m = 0; m < count; ++m) merge_partial(s.running + (first + m) * stride, partials[m], pad);
    }
  }
  if (item.partial != nullptr) return;
  for (int32_t m = 0; m < queries; ++m) {
    finish_query(a, item.row_begin + m / per_row, item.kv_head * per_row + m % per_row, s.running + m * stride);
  }
}

void attention(const AttentionArgs& a, const AttentionItem& item) {
  switch (a.kv.type) {
    case KvType::f32:
      return attend<CacheF32>(a, item);
    case KvType::bf16:
      return attend<CacheBf16>(a, item);
    case KvType::i8:
      return attend<CacheI8>(a, item);
    case KvType::e4m3:
      return attend<CacheE4m3>(a, item);
  }
}

void attention_merge(const AttentionArgs& a, int32_t row, int32_t head, const float* const* partials, int32_t n) {
  alignas(64) float running[kPartialHeader + kMaxHeadDim];
  running[1] = 0.0f;
  for (int32_t i = 0; i < n; ++i) merge_partial(running, partials[i], a.kv.head_pad);
  finish_query(a, row, head, running);
}
