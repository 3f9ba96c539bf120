// Log probabilities of one row, from the raw logits.

// ln(x) for x >= 1 and finite; NaN for NaN.
// x = 2^e m with m in [sqrt(1/2), sqrt(2)], ln(m) = 2 artanh((m - 1) / (m + 1)).
LEGATO_INLINE double natural_log(double x) {
  if (!(x >= 1.0)) return static_cast<double>(__builtin_nanf(""));
  uint64_t bits = __builtin_bit_cast(uint64_t, x);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffull) | (1023ull << 52);
  double m = __builtin_bit_cast(double, bits);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1.0) / (m + 1.0), square = s * s;
  double series = 0.0;
  for (int k = 21; k >= 1; k -= 2) series = series * square + 1.0 / k;
  return static_cast<double>(exponent) * 0.6931471805599453 + 2.0 * s * series;
}

// The `count` largest logits, best first, ties by lower id: an insertion into a short sorted list.
LEGATO_INLINE void find_top(const float* logits, int32_t vocab, int32_t count, int32_t* ids, float* values) {
  const auto insert = [&](int32_t size, int32_t id) {
    int32_t at = size;
    for (; at > 0 && values[at - 1] < logits[id]; --at) {
      if (at == count) continue;
      values[at] = values[at - 1];
      ids[at] = ids[at - 1];
    }
    if (at == count) return;
    values[at] = logits[id];
    ids[at] = id;
  };
  int32_t i = 0;
  for (; i < count; ++i) insert(i, i);
  while (i < vocab) {
    const int lanes = smaller(vocab - i, kLanes);
    uint32_t above = less_bits(splat(values[count - 1]), load_n(logits + i, lanes)) & ((1u << lanes) - 1u);
    for (; above != 0; above &= above - 1u) insert(count, i + __builtin_ctz(above));
    i += lanes;
  }
}

void logprobs(LogprobArgs& a) {
  Vf tops = splat(-kInfinity);
  for (int32_t i = 0; i < a.vocab; i += kLanes) {
    const int lanes = smaller(a.vocab - i, kLanes);
    tops = max(tops, select((1u << lanes) - 1u, load_n(a.logits + i, lanes), splat(-kInfinity)));
  }
  const float top = largest(tops);
  double total = 0.0;
  for (int32_t t = 0; t < a.vocab; t += kSumTile) {
    Vf acc = zero();
    for (int32_t i = t; i < smaller(t + kSumTile, a.vocab); i += kLanes) {
      const int lanes = smaller(a.vocab - i, kLanes);
      acc = acc + select((1u << lanes) - 1u, exp(load_n(a.logits + i, lanes) - splat(top)), zero());
    }
    total += static_cast<double>(sum(acc));
  }
  const float log_total = static_cast<float>(natural_log(total));
  a.logprob = a.token < 0 ? __builtin_nanf("") : (a.logits[a.token] - top) - log_total;
  if (a.count == 0) return;
  find_top(a.logits, a.vocab, a.count, a.top_ids, a.top_logprobs);
  for (int32_t i = 0; i < a.count; ++i) a.top_logprobs[i] = (a.top_logprobs[i] - top) - log_total;
}
