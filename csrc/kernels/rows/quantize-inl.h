// f32 rows to any activation format, and the search for rows that went wrong.

void quantize(const QuantizeArgs& a, int32_t row_begin, int32_t row_end) {
  constexpr int32_t kChunk = 64;  // a multiple of every group
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* x = a.x + row * a.x_stride;
    const int32_t whole = a.acts.k / kChunk * kChunk;
    if (whole > 0) store_columns(a.acts, row, 0, x, whole);
    if (whole < a.acts.k) {
      alignas(64) float rest[kChunk] = {};
      for (int32_t i = whole; i < a.acts.k; ++i) rest[i - whole] = x[i];
      store_columns(a.acts, row, whole, rest, a.acts.k - whole);
    }
    store_pad(a.acts, row);
  }
}

void find_faults(const float* x, int64_t stride, int32_t width, int32_t rows, uint8_t* faults) {
  for (int64_t row = 0; row < rows; ++row) {
    const float* values = x + row * stride;
    uint32_t bits = 0;
    int32_t i = 0;
    for (; i + kLanes <= width; i += kLanes) bits |= fault_bits(load(values + i));
    bits |= fault_bits(load_n(values + i, width - i));
    faults[row] = bits != 0;
  }
}
