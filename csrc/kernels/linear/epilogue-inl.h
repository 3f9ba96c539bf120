// From a tile's products to the output: channel scales, bias, activation, gate, residual, quantization.

// Rows [row, row + rows) of output column panel `panel`. y and up are [rows][64] products; y is overwritten.
struct TileOut {
  int32_t row;
  int32_t rows;
  int32_t panel;
  int32_t columns;  // of the panel that exist
  float* y;
  const float* up;           // glu: the second panel's products
  const float* bias;         // [64]
  const float* up_bias;      // [64]
  const float* channels;     // [64] scales of columns
  const float* up_channels;  // [64]
};

// Where finished values go: over the products (to be quantized), to the output, or onto it.
enum class Target { products, output, sum };

// act(y * channels + bias), for glu times (up * up_channels + up_bias).
template <Activation A, bool kGlu, Target T>
void finish(const Epilogue& e, const TileOut& t) {
  const Vf scale = splat(e.scale);
  const int64_t stride = T == Target::products ? kPanel : e.out_stride;
  float* out = T == Target::products ? t.y : e.out + t.row * stride + t.panel * kPanel;
  for (int32_t c = 0; c < t.columns; c += kLanes) {
    const int32_t n = T == Target::products ? kLanes : smaller(t.columns - c, kLanes);
    const Vf channels = load(t.channels + c), bias = load(t.bias + c);
    [[maybe_unused]] const Vf up_channels = load(t.up_channels + c), up_bias = load(t.up_bias + c);
    for (int32_t m = 0; m < t.rows; ++m) {
      const int32_t i = m * kPanel + c;
      Vf value = activate<A>(load(t.y + i) * channels + bias);
      if constexpr (A == Activation::none && !kGlu) value = value * scale;
      if constexpr (kGlu) value = value * (load(t.up + i) * up_channels + up_bias);
      float* to = out + m * stride + c;
      if (n == kLanes) {
        store(to, T == Target::sum ? load(to) + value : value);
      } else {
        store_n(to, T == Target::sum ? load_n(to, n) + value : value, n);
      }
    }
  }
}

template <bool kGlu, Target T>
void finish(const Epilogue& e, const TileOut& t) {
  switch (e.act) {
    case Activation::none:
      return finish<Activation::none, kGlu, T>(e, t);
    case Activation::silu:
      return finish<Activation::silu, kGlu, T>(e, t);
    case Activation::gelu:
      return finish<Activation::gelu, kGlu, T>(e, t);
    case Activation::gelu_tanh:
      return finish<Activation::gelu_tanh, kGlu, T>(e, t);
    case Activation::relu:
      return finish<Activation::relu, kGlu, T>(e, t);
  }
}

void write_tile(const Epilogue& e, TileOut t) {
  const bool glu = e.kind == EpilogueKind::glu;
  if (e.kind == EpilogueKind::add) return finish<Activation::none, false, Target::sum>(e, t);
  if (e.out != nullptr) return glu ? finish<true, Target::output>(e, t) : finish<false, Target::output>(e, t);
  t.columns = kPanel;
  glu ? finish<true, Target::products>(e, t) : finish<false, Target::products>(e, t);
  for (int32_t m = 0; m < t.rows; ++m) {
    store_columns(e.acts, t.row + m, t.panel * kPanel, t.y + m * kPanel, kPanel);
  }
}
