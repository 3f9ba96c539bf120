// y = x W^T for a range of rows and a range of output panels.
//
// A panel stays in the cache while tiles of rows pass by; each output element is summed over K by one tile function of
// its weight type, whose order of operations does not depend on the number of rows in the tile.

template <Codes C>
TileFn code_tile_fn(int32_t rows) {
  static constexpr TileFn kTiles[kTileRows] = {code_tile<C, 1>, code_tile<C, 2>, code_tile<C, 3>,
                                               code_tile<C, 4>, code_tile<C, 5>, code_tile<C, 6>};
  return kTiles[rows - 1];
}

template <class Dot>
TileFn float_tile_fn(int32_t rows) {
  static constexpr TileFn kTiles[kTileRows] = {float_tile<Dot, 1>, float_tile<Dot, 2>, float_tile<Dot, 3>,
                                               float_tile<Dot, 4>, float_tile<Dot, 5>, float_tile<Dot, 6>};
  return kTiles[rows - 1];
}

TileFn tile_fn(const Weight& w, int32_t rows) {
  switch (w.type) {
    case WeightType::f32:
      return float_tile_fn<DotF32>(rows);
    case WeightType::f16:
      return float_tile_fn<DotF16>(rows);
    case WeightType::bf16:
      return float_tile_fn<DotBf16>(rows);
    case WeightType::i8:
      return w.group == 0 ? code_tile_fn<Codes::i8_channel>(rows) : code_tile_fn<Codes::i8_group>(rows);
    case WeightType::q4:
      break;
  }
  return w.has_min ? code_tile_fn<Codes::q4_min>(rows) : code_tile_fn<Codes::q4>(rows);
}

// The weights that tile `tile` of `tiles` asks for. Alone it runs ahead in its own panel; several share the panel that
// comes after it, `stride` bytes on, so that it is there when the first of them begins.
LEGATO_INLINE Ahead ahead_of(const uint8_t* panel, size_t panel_bytes, size_t stride, int32_t tile, int32_t tiles) {
  if (tiles == 1) return {panel + kPrefetchBytes, 4};
  const int32_t shares = tiles < 4 ? 2 : 4;  // of the 4 lines that a step has at most
  if (tile >= shares) return {panel, 0};
  return {panel + stride + panel_bytes / static_cast<size_t>(shares) * static_cast<size_t>(tile), 4 / shares};
}

// Products of one tile, channel scales included.
void multiply(const LinearArgs& args, int32_t row, int32_t rows, int32_t panel, int32_t tile, int32_t tiles, float* y) {
  const Weight& w = args.w;
  const uint8_t* bytes = w.panels + static_cast<size_t>(panel) * w.panel_bytes;
  const size_t stride = args.e.kind == EpilogueKind::glu ? 2 * w.panel_bytes : w.panel_bytes;
  tile_fn(w, rows)(args, row, bytes, ahead_of(bytes, w.panel_bytes, stride, tile, tiles), y);
  if (w.type != WeightType::i8 || w.group != 0) return;
  const float* channels = reinterpret_cast<const float*>(bytes + static_cast<size_t>(w.k_pad) * kPanel);
  for (int32_t c = 0; c < kPanel; c += kLanes) {
    const Vf channel = load(channels + c);
    for (int32_t i = c; i < rows * kPanel; i += kPanel) store(y + i, load(y + i) * channel);
  }
}

// The bias of one packed panel, zero where there is none.
void load_bias(const LinearArgs& args, int32_t panel, float* bias) {
  const int32_t n = args.e.bias == nullptr ? 0 : smaller(args.w.n - panel * kPanel, kPanel);
  for (int32_t c = 0; c < kPanel; ++c) bias[c] = c < n ? args.e.bias[panel * kPanel + c] : 0.0f;
}

void linear(const LinearArgs& args, int32_t row_begin, int32_t row_end, int32_t panel_begin, int32_t panel_end,
            void* scratch) {
  const bool glu = args.e.kind == EpilogueKind::glu;
  float* y = static_cast<float*>(scratch);
  float* up = y + kTileRows * kPanel;
  float* bias = up + kTileRows * kPanel;
  float* up_bias = bias + kPanel;
  for (int32_t panel = panel_begin; panel < panel_end; ++panel) {
    const int32_t first = glu ? 2 * panel : panel;
    load_bias(args, first, bias);
    load_bias(args, glu ? first + 1 : first, up_bias);
    const int32_t columns = glu ? kPanel : smaller(args.w.n - panel * kPanel, kPanel);
    const int32_t tiles = (row_end - row_begin + kTileRows - 1) / kTileRows;
    int32_t tile = 0;
    for (int32_t row = row_begin; row < row_end; ++tile) {
      const int32_t left = row_end - row;
      const int32_t rows = left / ((left + kTileRows - 1) / kTileRows);  // tiles of nearly one size
      multiply(args, row, rows, first, tile, tiles, y);
      if (glu) multiply(args, row, rows, first + 1, tile, tiles, up);
      write_tile(args.e, {row, rows, panel, columns, y, up, bias, up_bias});
      row += rows;
    }
  }
}
