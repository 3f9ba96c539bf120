// Passes over a row of logits: reading with the mask, the maximum, weights and their sums.
//
// Sums over the vocabulary are float within a tile of kSumTile tokens, in one fixed order, and double across tiles in
// ascending order.

constexpr int32_t kSumTile = 256;

// Bit i: token `first` + i is allowed. `first` is a multiple of kLanes; the mask has no byte behind the vocabulary.
LEGATO_INLINE uint32_t mask_bits(const uint8_t* mask, int32_t first, int32_t vocab) {
  if constexpr (kLanes == 16) {
    const uint32_t high = first + 8 < vocab ? mask[first / 8 + 1] : 0;
    return mask[first / 8] | high << 8;
  }
  return static_cast<uint32_t>(mask[first / 8]) >> (first % 8) & kAllLanes;
}

// Logits of tokens [first, first + kLanes); -inf where the token is masked or behind the vocabulary.
LEGATO_INLINE Vf allowed_logits(const SampleArgs& a, int32_t first) {
  const int lanes = smaller(a.vocab - first, kLanes);
  uint32_t bits = (1u << lanes) - 1u;
  if (a.mask != nullptr) bits &= mask_bits(a.mask, first, a.vocab);
  return select(bits, load_n(a.logits + first, lanes), splat(-kInfinity));
}

struct Best {
  float logit;   // -inf: no token is allowed
  int32_t tile;  // first token of the first tile that holds it
  bool faulty;   // the row holds a NaN or +Inf, masked or not
};

// One pass. tile_tops, if not null, gets the largest allowed logit of each tile of `tile` tokens.
LEGATO_INLINE Best find_best(const SampleArgs& a, int32_t tile, float* tile_tops) {
  Best best = {-kInfinity, 0, false};
  uint32_t fine = kAllLanes;
  for (int32_t t = 0; t < a.vocab; t += tile) {
    Vf top = splat(-kInfinity);
    for (int32_t i = t; i < smaller(t + tile, a.vocab); i += kLanes) {
      fine &= less_bits(load_n(a.logits + i, smaller(a.vocab - i, kLanes)), splat(kInfinity));
      top = max(top, allowed_logits(a, i));
    }
    const float value = largest(top);
    if (tile_tops != nullptr) tile_tops[t / tile] = value;
    if (value > best.logit) {
      best.logit = value;
      best.tile = t;
    }
  }
  best.faulty = fine != kAllLanes;
  return best;
}

// Float sum of up to kSumTile values.
LEGATO_INLINE float tile_sum(const float* values, int32_t n) {
  Vf acc = zero();
  for (int32_t i = 0; i < n; i += kLanes) acc = acc + load_n(values + i, smaller(n - i, kLanes));
  return sum(acc);
}

LEGATO_INLINE double sum_all(const float* values, int32_t n) {
  double total = 0.0;
  for (int32_t t = 0; t < n; t += kSumTile)
    total += static_cast<double>(tile_sum(values + t, smaller(n - t, kSumTile)));
  return total;
}

// The index at quantile `uniform`: the first whose running sum exceeds uniform * total.
LEGATO_INLINE int32_t draw(const float* weights, int32_t n, float uniform) {
  const double target = static_cast<double>(uniform) * sum_all(weights, n);
  double running = 0.0;
  int32_t t = 0;
  for (; t + kSumTile < n; t += kSumTile) {
    const double next = running + static_cast<double>(tile_sum(weights + t, kSumTile));
    if (next > target) break;
    running = next;
  }
  int32_t last = t;
  for (int32_t i = t; i < smaller(t + kSumTile, n); ++i) {
    if (weights[i] == 0.0f) continue;
    last = i;
    running += static_cast<double>(weights[i]);
    if (running > target) break;
  }
  return last;  // the tile's last weight if the tile's sum was rounded up past the target
}
