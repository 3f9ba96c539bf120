// The best tokens without sorting: radix selection over the bits of the logits, in the order (higher logit, lower id).

// Tokens that may still be chosen: ascending ids, and their weights relative to the best token's (all above zero).
struct Candidates {
  int32_t* ids;
  float* weights;
  int32_t count;
};

// Larger floats have larger keys; -0 and 0 have the same.
LEGATO_INLINE uint32_t order_key(float x) {
  const uint32_t bits = bits_from_float(x + 0.0f);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The border of a selection: every key above `key` is in, and the first `ties` of those equal to it.
struct Cut {
  uint32_t key;
  int32_t ties;
};

// The shortest best-first prefix of the candidates whose amounts sum to `target` or more (all of them if none does).
// A candidate's amount is its weight, or 1 for by_count. Narrows the key 11, 11 and 10 bits at a time; amounts are
// summed per bucket in ascending id order, so the result depends on the candidates alone.
// `target` is above zero.
Cut find_cut(const float* logits, const Candidates& c, bool by_count, double target) {
  constexpr int kBits = 11, kBuckets = 1 << kBits;
  double amounts[kBuckets];
  double taken = 0.0;
  uint32_t prefix = 0;
  for (int shift = 32 - kBits, width = kBits; width > 0; width = smaller(shift, kBits), shift -= width) {
    __builtin_memset(amounts, 0, sizeof(amounts));
    for (int32_t i = 0; i < c.count; ++i) {
      const uint32_t key = order_key(logits[c.ids[i]]);
      if ((static_cast<uint64_t>(key) >> (shift + width)) != prefix) continue;
      amounts[key >> shift & ((1u << width) - 1u)] += by_count ? 1.0 : static_cast<double>(c.weights[i]);
    }
    int chosen = 0;
    double before = taken;
    for (int bucket = (1 << width) - 1; bucket >= 0 && taken < target; --bucket) {
      if (amounts[bucket] == 0.0) continue;
      chosen = bucket;
      before = taken;
      taken += amounts[bucket];
    }
    taken = before;  // where none reaches the target (rounding): the lowest bucket in use
    prefix = prefix << width | static_cast<uint32_t>(chosen);
  }
  Cut cut = {prefix, 0};
  for (int32_t i = 0; i < c.count && taken < target; ++i) {
    if (order_key(logits[c.ids[i]]) != cut.key) continue;
    taken += by_count ? 1.0 : static_cast<double>(c.weights[i]);
    ++cut.ties;
  }
  return cut;
}

// Removes the candidates behind the cut; the ids stay ascending.
void apply_cut(const float* logits, Cut cut, Candidates* c) {
  int32_t kept = 0, ties = 0;
  for (int32_t i = 0; i < c->count; ++i) {
    const uint32_t key = order_key(logits[c->ids[i]]);
    if (key < cut.key || (key == cut.key && ties++ >= cut.ties)) continue;
    c->ids[kept] = c->ids[i];
    c->weights[kept++] = c->weights[i];
  }
  c->count = kept;
}
