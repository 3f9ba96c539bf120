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
    case WeightType::i4:  // always expanded
      break;
  }
  return w.has_min ? code_tile_fn<Codes::q4_min>(rows) : code_tile_fn<Codes::q4>(rows);
}

TileFn expanded_tile_fn(const Weight& w, [[maybe_unused]] const Run& run, int32_t rows) {
#if !defined(LEGATO_ISA_avx512_bf16)
  if (run.kept != nullptr) return float_tile_fn<DotKeep>(rows);
  if (w.type == WeightType::bf16) return float_tile_fn<DotWide>(rows);
#endif
  if (w.type == WeightType::i4) return rows == 1 ? code_tile<Codes::i4, 1> : code_tile_fn<Codes::i8_channel>(rows);
  return w.has_min ? code_tile_fn<Codes::expanded_min>(rows) : code_tile_fn<Codes::expanded>(rows);
}

// Rows cut into parts of nearly one size, `limit` at most: those of the first part.
LEGATO_INLINE int32_t first_part(int32_t rows, int32_t limit) { return rows / ((rows + limit - 1) / limit); }

// Whether a panel ends with a scale of each column, and its codes are bytes with a zero point of 128.
LEGATO_INLINE bool per_channel(const Weight& w) {
  return w.type == WeightType::i4 || (w.type == WeightType::i8 && w.group == 0);
}

// Where the products of a row start: what the zero point takes away from weights of one scale per channel, else 0.
LEGATO_INLINE float start_of_products(const LinearArgs& args, int32_t row) {
  return per_channel(args.w) ? zero_point_share(args.x, args.w.zero + 128, row) : 0.0f;
}

// The weights that tiles ask for while they are computed. A single tile runs ahead in its own panel; several share the
// panel that comes after it, so that it is there when the first of them begins.
constexpr int32_t kAskingTiles = 8;

// Cache lines of a panel, at most, to ask for in 4 steps.
LEGATO_INLINE int32_t lines_of_steps(const Weight& w, int32_t rows) {
  if (w.type != WeightType::i4) return kRunLines;
  return rows <= kTileRows ? 4 * kI4Fresh : 10;
}

struct Prefetch {
  Ahead tiles[kAskingTiles + 1];  // the last: of all other tiles, which ask for nothing

  Prefetch(const Weight& w, const uint8_t* panel, const uint8_t* after, int32_t rows) {
    const int32_t lines = lines_of_steps(w, rows);
    for (Ahead& ahead : tiles) ahead = {panel, 0};
    if (rows <= kTileRows) {
      tiles[0] = {panel + (w.type == WeightType::i4 ? kI4PrefetchBytes : kPrefetchBytes), lines};
      return;
    }
    const int32_t shares = rows <= 3 * kTileRows ? 2 : rows <= kAskingTiles * kTileRows ? 4 : kAskingTiles;
    for (int32_t i = 0; i < shares; ++i) {
      tiles[i] = {after + w.panel_bytes / static_cast<size_t>(shares) * static_cast<size_t>(i),
                  (lines + shares - 1) / shares};
    }
  }
};

// What `linear` has in its scratch.
struct LinearScratch {
  float y[kChunkRows * kPanel];
  float up[kChunkRows * kPanel];
  float bias[kPanel];
  float up_bias[kPanel];
  float channels[kPanel];
  float up_channels[kPanel];
  float starts[kStartRows];  // of the first rows of the call: where their products start
  uint8_t expanded[kI4ExpandBytes];
};
static_assert(sizeof(LinearScratch) == kLinearScratchBytes);

// One panel of weights and the tiles of rows that it meets. `rows`: of the whole call, from row_begin on. `after`: the
// panel to ask for meanwhile.
struct PanelPass {
  const LinearArgs& args;
  LinearScratch& scratch;
  int32_t row_begin;
  const uint8_t* panel;
  bool expanded;
  Prefetch prefetch;

  PanelPass(const LinearArgs& a, LinearScratch& s, int32_t begin, int32_t rows, const uint8_t* at, const uint8_t* after)
      : args(a),
        scratch(s),
        row_begin(begin),
        panel(at),
        expanded(expands(a.w, rows)),
        prefetch(a.w, at, after, rows) {}

  float start_of(int32_t row) const {
    const int32_t index = row - row_begin;
    return index < kStartRows ? scratch.starts[index] : start_of_products(args, row);
  }

  // y[rows][64] = the products of rows [row, row + rows), of which the first is in tile `tile` of the pass. Calls
  // finish(first, count) for rows [first, first + count) of these as soon as they are complete.
  template <class Finish>
  void multiply(int32_t row, int32_t rows, int32_t tile, float* y, Finish&& finish) {
    if (!expanded) return run({panel, 0, args.w.k_pad, nullptr}, row, 0, rows, tile, y, finish);
    const int32_t step = expanded_k(args.w, rows);
    for (int32_t k = 0; k < args.w.k_pad; k += step) {
      const int32_t n = smaller(step, args.w.k_pad - k);
      const uint8_t* packed = packed_at(args.w, panel, k);
      int32_t done = 0;
      if (args.w.type == WeightType::i4) {
        expand_i4(packed, n, rows <= kTileRows ? kI4Asked : 0, prefetch.tiles[0], scratch.expanded);
      } else if (args.w.type == WeightType::q4) {
        expand_q4(args.w, packed, n, scratch.expanded);
      } else {
        done = first_part(rows, kTileRows);
        run({packed, k, n, reinterpret_cast<float*>(scratch.expanded)}, row, 0, done, tile, y, finish);
      }
      run({scratch.expanded, k, n, nullptr}, row, done, rows, done == 0 ? tile : tile + 1, y, finish);
    }
  }

  // Rows [from, to) of those from `row` on, tile by tile: what precedes and follows the products of a tile is done
  // while it is in the first cache.
  template <class Finish>
  void run(const Run& part, int32_t row, int32_t from, int32_t to, int32_t tile, float* y, Finish&& finish) {
    for (int32_t count; from < to; from += count, ++tile) {
      count = first_part(to - from, kTileRows);
      if (part.k_begin == 0) fill_starts(row + from, count, y + from * kPanel);
      const TileFn fn = expanded ? expanded_tile_fn(args.w, part, count) : tile_fn(args.w, count);
      fn(args, row + from, part, prefetch.tiles[smaller(tile, kAskingTiles)], y + from * kPanel);
      if (part.k_begin + part.k == args.w.k_pad) finish(from, count);
    }
  }

  void fill_starts(int32_t row, int32_t rows, float* y) const {
    for (int32_t m = 0; m < rows; ++m) {
      const Vf start = splat(start_of(row + m));
      LEGATO_UNROLL for (int32_t c = 0; c < kPanel; c += kLanes) store(y + m * kPanel + c, start);
    }
  }
};

// The bias of one packed panel, zero where there is none.
void load_bias(const LinearArgs& args, int32_t panel, float* bias) {
  const int32_t n = args.e.bias == nullptr ? 0 : smaller(args.w.n - panel * kPanel, kPanel);
  for (int32_t c = 0; c < kPanel; ++c) bias[c] = c < n ? args.e.bias[panel * kPanel + c] : 0.0f;
}

// The channel scales of one packed panel, one where there are none.
void load_channels(const Weight& w, int32_t panel, float* channels) {
  const uint8_t* bytes = w.panels + static_cast<size_t>(panel + 1) * w.panel_bytes - kPanel * sizeof(float);
  const bool scaled = per_channel(w);
  for (int32_t c = 0; c < kPanel; c += kLanes)
    store(channels + c, scaled ? load_as<Vf>(bytes + c * sizeof(float)) : splat(1.0f));
}

void linear(const LinearArgs& args, int32_t row_begin, int32_t row_end, int32_t panel_begin, int32_t panel_end,
            const uint8_t* next, void* scratch) {
  const bool glu = args.e.kind == EpilogueKind::glu;
  LinearScratch& s = *static_cast<LinearScratch*>(scratch);
  const int32_t all = row_end - row_begin;
  for (int32_t i = 0; i < smaller(all, kStartRows); ++i) s.starts[i] = start_of_products(args, row_begin + i);
  for (int32_t panel = panel_begin; panel < panel_end; ++panel) {
    const int32_t first = glu ? 2 * panel : panel, second = glu ? first + 1 : first;
    load_bias(args, first, s.bias);
    load_channels(args.w, first, s.channels);
    if (glu) {
      load_bias(args, second, s.up_bias);
      load_channels(args.w, second, s.up_channels);
    }
    const size_t bytes = args.w.panel_bytes, one_on = static_cast<size_t>(second - first) * bytes;
    const uint8_t* at = args.w.panels + static_cast<size_t>(first) * bytes;
    const uint8_t* after = panel + 1 == panel_end && next != nullptr ? next : at + bytes + one_on;
    PanelPass pass(args, s, row_begin, all, at, after), up_pass(args, s, row_begin, all, at + one_on, after + one_on);
    const int32_t columns = glu ? kPanel : smaller(args.w.n - panel * kPanel, kPanel);
    // Products that wait for other parts of K leave the first cache; else they are finished while they are in it.
    const int32_t limit = pass.expanded ? kChunkRows : kTileRows;
    for (int32_t row = row_begin, tile = 0, rows; row < row_end; row += rows) {
      rows = first_part(row_end - row, limit);
      const auto write = [&](int32_t from, int32_t count) {
        float *y = s.y + from * kPanel, *up = s.up + from * kPanel;
        write_tile(args.e, {row + from, count, panel, columns, y, up, s.bias, s.up_bias, s.channels, s.up_channels});
      };
      pass.multiply(row, rows, tile, s.y, [&](int32_t from, int32_t count) {
        if (!glu) write(from, count);
      });
      if (glu) up_pass.multiply(row, rows, tile, s.up, write);
      tile += (rows + kTileRows - 1) / kTileRows;
    }
  }
}
