// One token of one row. The order of the filters is part of the interface (kernels.h).

constexpr int32_t kTopTile = 64;

LEGATO_INLINE int32_t first_token_of(const SampleArgs& a, Best best) {
  for (int32_t i = best.tile;; i += kLanes) {
    const uint32_t below = less_bits(allowed_logits(a, i), splat(best.logit));
    if ((~below & kAllLanes) != 0) return i + __builtin_ctz(~below & kAllLanes);
  }
}

// exp((logit - best) / temperature), zero below min_p.
LEGATO_INLINE Vf weigh(const SampleArgs& a, Vf logits, float best, float inverse_temperature) {
  const Vf w = exp((logits - splat(best)) * splat(inverse_temperature));
  return select(less_bits(w, splat(a.min_p)), zero(), w);
}

// Appends the allowed tokens with logits >= least and a weight above zero.
LEGATO_INLINE Candidates collect(const SampleArgs& a, float best, float inverse_temperature, float least) {
  Candidates c = {a.scratch_ids, a.scratch_values, 0};
  for (int32_t i = 0; i < a.vocab; i += kLanes) {
    const Vf logits = allowed_logits(a, i);
    uint32_t bits = ~less_bits(logits, splat(least)) & kAllLanes;
    if (bits == 0) continue;
    float weights[kLanes];
    store(weights, weigh(a, logits, best, inverse_temperature));
    for (; bits != 0; bits &= bits - 1u) {
      const int lane = __builtin_ctz(bits);
      if (weights[lane] == 0.0f) continue;
      c.ids[c.count] = i + lane;
      c.weights[c.count++] = weights[lane];
    }
  }
  return c;
}

// A logit that the k best tokens reach: the k-th largest of the tiles' maxima, which are k different tokens. -inf where
// there are not clearly more tiles than k. Overwrites the scratch.
LEGATO_INLINE float least_of_top_k(const SampleArgs& a, int32_t tiles) {
  if (a.top_k > tiles / 2) return -kInfinity;
  for (int32_t i = 0; i < tiles; ++i) a.scratch_ids[i] = i;
  const Candidates c = {a.scratch_ids, a.scratch_values, tiles};
  const uint32_t key = find_cut(a.scratch_values, c, true, static_cast<double>(a.top_k)).key;
  return float_from_bits((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

// Weights of the whole vocabulary into the scratch; returns their sum. parts[j], for top_p: the sum of those >=
// kLevels[j].
constexpr int kLevelCount = 8;
constexpr float kLevels[kLevelCount] = {0x1p-2f, 0x1p-4f, 0x1p-6f, 0x1p-8f, 0x1p-10f, 0x1p-12f, 0x1p-14f, 0x1p-17f};
LEGATO_INLINE double weigh_all(const SampleArgs& a, float best, float inverse_temperature, float* parts) {
  Vf acc[kLevelCount];
#pragma GCC unroll 8
  for (int j = 0; j < kLevelCount; ++j) acc[j] = zero();
  for (int32_t i = 0; i < a.vocab; i += kLanes) {
    const Vf w = weigh(a, allowed_logits(a, i), best, inverse_temperature);
    store_n(a.scratch_values + i, w, smaller(a.vocab - i, kLanes));
    if (a.top_p >= 1.0f) continue;
#pragma GCC unroll 8
    for (int j = 0; j < kLevelCount; ++j) acc[j] = acc[j] + select(less_bits(w, splat(kLevels[j])), zero(), w);
  }
#pragma GCC unroll 8
  for (int j = 0; j < kLevelCount; ++j) parts[j] = sum(acc[j]);
  return sum_all(a.scratch_values, a.vocab);
}

// Candidates that hold the nucleus: the weights above the highest level whose sum reaches the target for certain.
LEGATO_INLINE Candidates collect_nucleus(const SampleArgs& a, const float* parts, double target) {
  constexpr double kMargin = 1.0 + 1e-3;  // covers the rounding of `parts`
  float least = 0.0f;
  for (int j = kLevelCount - 1; j >= 0 && static_cast<double>(parts[j]) >= target * kMargin; --j) least = kLevels[j];
  Candidates c = {a.scratch_ids, a.scratch_values, 0};
  for (int32_t i = 0; i < a.vocab; i += kLanes) {
    const Vf w = load_n(a.scratch_values + i, smaller(a.vocab - i, kLanes));
    float weights[kLanes];
    store(weights, w);  // before the list, which is written over the same scratch
    for (uint32_t bits = ~less_bits(w, splat(least)) & kAllLanes; bits != 0; bits &= bits - 1u) {
      const int lane = __builtin_ctz(bits);
      if (weights[lane] == 0.0f) continue;
      c.ids[c.count] = i + lane;
      c.weights[c.count++] = weights[lane];
    }
  }
  return c;
}

LEGATO_INLINE void keep_top_p(const SampleArgs& a, double total, Candidates* c) {
  apply_cut(a.logits, find_cut(a.logits, *c, false, static_cast<double>(a.top_p) * total), c);
}

void sample(SampleArgs& a) {
  constexpr float kLeastTemperature = 0x1p-126f;  // below it the inverse overflows
  const bool greedy = a.temperature < kLeastTemperature;
  const bool filter_k = a.top_k > 0 && a.top_k < a.vocab;
  const Best best = find_best(a, kTopTile, !greedy && filter_k ? a.scratch_values : nullptr);
  a.token = -1;
  if (best.faulty || best.logit == -kInfinity) return;
  if (greedy) {
    a.token = first_token_of(a, best);
    return;
  }
  const float inverse = 1.0f / a.temperature;
  if (filter_k) {
    const float least = least_of_top_k(a, (a.vocab + kTopTile - 1) / kTopTile);
    Candidates c = collect(a, best.logit, inverse, least);
    apply_cut(a.logits, find_cut(a.logits, c, true, static_cast<double>(a.top_k)), &c);
    if (a.top_p < 1.0f) keep_top_p(a, sum_all(c.weights, c.count), &c);
    a.token = c.ids[draw(c.weights, c.count, a.uniform)];
    return;
  }
  float parts[kLevelCount];
  const double total = weigh_all(a, best.logit, inverse, parts);
  if (a.top_p >= 1.0f) {
    a.token = draw(a.scratch_values, a.vocab, a.uniform);
    return;
  }
  Candidates c = collect_nucleus(a, parts, static_cast<double>(a.top_p) * total);
  keep_top_p(a, total, &c);
  a.token = c.ids[draw(c.weights, c.count, a.uniform)];
}
