// From a tile's products to the output: bias, activation, gate, residual, quantization.

// One tile: rows [row, row + rows) of output column panel `panel`. y and up are [rows][64]; y is overwritten.
struct TileOut {
  int32_t row;
  int32_t rows;
  int32_t panel;
  int32_t columns;  // of the panel that exist
  float* y;
  const float* up;       // glu: the second panel's products
  const float* bias;     // [64]
  const float* up_bias;  // [64]
};

// y = act(y + bias), for glu times (up + up_bias).
template <Activation A, bool kGlu>
void finish(const TileOut& t, float scale) {
  for (int32_t c = 0; c < kPanel; c += kLanes) {
    const Vf bias = load(t.bias + c), up_bias = load(t.up_bias + c);
    for (int32_t i = c; i < t.rows * kPanel; i += kPanel) {
      Vf value = activate<A>(load(t.y + i) + bias);
      if constexpr (A == Activation::none) value = value * splat(scale);
      if constexpr (kGlu) value = value * (load(t.up + i) + up_bias);
      store(t.y + i, value);
    }
  }
}

template <bool kGlu>
void finish(const TileOut& t, Activation act, float scale) {
  switch (act) {
    case Activation::none:
      return finish<Activation::none, kGlu>(t, scale);
    case Activation::silu:
      return finish<Activation::silu, kGlu>(t, scale);
    case Activation::gelu:
      return finish<Activation::gelu, kGlu>(t, scale);
    case Activation::gelu_tanh:
      return finish<Activation::gelu_tanh, kGlu>(t, scale);
    case Activation::relu:
      return finish<Activation::relu, kGlu>(t, scale);
  }
}

void write_rows(const Epilogue& e, const TileOut& t) {
  for (int32_t m = 0; m < t.rows; ++m) {
    const float* from = t.y + m * kPanel;
    if (e.out == nullptr) {
      store_columns(e.acts, t.row + m, t.panel * kPanel, from, kPanel);
      continue;
    }
    float* to = e.out + (t.row + m) * e.out_stride + t.panel * kPanel;
    for (int32_t c = 0; c < t.columns; c += kLanes) {
      const int32_t n = smaller(t.columns - c, kLanes);
      const Vf value = load(from + c);
      store_n(to + c, e.kind == EpilogueKind::add ? load_n(to + c, n) + value : value, n);
    }
  }
}

void write_tile(const Epilogue& e, const TileOut& t) {
  if (e.kind == EpilogueKind::glu) {
    finish<true>(t, e.act, 1.0f);
  } else if (e.kind == EpilogueKind::add) {
    finish<Activation::none, false>(t, e.scale);
  } else {
    finish<false>(t, e.act, e.scale);
  }
  write_rows(e, t);
}
