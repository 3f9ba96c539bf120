// RMS norm and layer norm, with the conversion of the result fused.

// Sum of (x - shift)^2 in one fixed order: four running vectors.
LEGATO_INLINE float sum_squares(const float* x, int32_t n, float shift) {
  constexpr int32_t kStep = 4 * kLanes;
  const Vf s = splat(shift);
  Vf acc[4] = {zero(), zero(), zero(), zero()};
  int32_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    for (int j = 0; j < 4; ++j) {
      const Vf v = load(x + i + j * kLanes) - s;
      acc[j] = fma(v, v, acc[j]);
    }
  }
  for (; i < n; i += kLanes) {
    const int lanes = smaller(n - i, kLanes);
    const Vf v = select((1u << lanes) - 1u, load_n(x + i, lanes) - s, zero());
    acc[0] = fma(v, v, acc[0]);
  }
  return sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

LEGATO_INLINE float sum_values(const float* x, int32_t n) {
  Vf acc = zero();
  for (int32_t i = 0; i < n; i += kLanes) acc = acc + load_n(x + i, smaller(n - i, kLanes));
  return sum(acc);
}

// Columns [c, c + n) of a row, n at most kLanes, with the mean taken away and multiplied by `factor`.
LEGATO_INLINE Vf normalized(const NormArgs& a, const float* x, int32_t c, int n, Vf shift, Vf factor) {
  const Vf v = (load_some(x + c, n) - shift) * factor * load_some(a.weight + c, n);
  return a.bias != nullptr ? v + load_some(a.bias + c, n) : v;
}

void norm(const NormArgs& a, int32_t row_begin, int32_t row_end) {
  constexpr int32_t kChunk = 64;  // a multiple of every quantization group
  const float width = static_cast<float>(a.width);
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* x = a.x + row * a.x_stride;
    const float mean = a.layer != 0 ? sum_values(x, a.width) / width : 0.0f;
    const Vf shift = splat(mean), factor = splat(inverse_sqrt(sum_squares(x, a.width, mean) / width + a.eps));
    for (int32_t c = 0; c < a.width; c += kChunk) {
      alignas(64) float y[kChunk];
      const int32_t columns = smaller(a.width - c, kChunk);
      if (columns == kChunk) {
        for (int32_t i = 0; i < kChunk; i += kLanes) store(y + i, normalized(a, x, c + i, kLanes, shift, factor));
      } else {
        for (int32_t i = 0; i < kChunk; i += kLanes) {
          const int n = larger(0, smaller(columns - i, kLanes));
          store(y + i, normalized(a, x, c + i, n, shift, factor));
        }
      }
      if (a.out == nullptr) {
        store_columns(a.acts, row, c, y, columns);
      } else {
        for (int32_t i = 0; i < columns; ++i) a.out[row * a.out_stride + c + i] = y[i];
      }
    }
    if (a.out == nullptr) store_pad(a.acts, row);
  }
}
