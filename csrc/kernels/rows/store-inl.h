// Writing columns of f32 values into a row of activations, in any format.

// Of a bf16 activation. A multiply-add takes f32 by a broadcast from memory, which is free; to widen pairs for each
// panel takes its ports.
#if defined(LEGATO_ISA_avx512_bf16)
constexpr int32_t kBf16Bytes = 2;
#else
constexpr int32_t kBf16Bytes = 4;
#endif

// The largest magnitude of n values (a multiple of kLanes), and whether one of them is a NaN or an infinity.
struct Range {
  float largest;
  bool faulty;
  // Below it the inverse of a scale could overflow; such values count as zero.
  bool plain() const { return !faulty && largest > 1e-30f; }
};

// `top`: the largest magnitude of each lane, found by larger_bits.
LEGATO_INLINE Range range_of(Vf top) { return {largest(top), fault_bits(top) != 0}; }

LEGATO_INLINE Range range_of(const float* x, int32_t n) {
  Vf top = zero();
  for (int32_t i = 0; i < n; i += kLanes) top = larger_bits(top, abs(load(x + i)));
  return range_of(top);
}

// One quantization group: scale = largest magnitude / 127, value = nearest whole number of x / scale. A group that
// holds a NaN or an infinity gets the scale NaN (and zeros), so that the fault reaches everything computed from it.
template <int32_t kGroup>
LEGATO_INLINE void store_s8_group(const float* x, int8_t* data, float* scale, int32_t* total) {
  const Range range = range_of(x, kGroup);
  const Vf inverse = splat(range.plain() ? 127.0f / range.largest : 0.0f);
  Vi sums = {};
  for (int32_t i = 0; i < kGroup; i += kLanes) {
    const Vi whole = to_int(range.faulty ? zero() : load(x + i) * inverse);
    sums += whole;
    store_bytes(reinterpret_cast<uint8_t*>(data) + i, whole);
  }
  *total = static_cast<int32_t>(sum(__builtin_convertvector(sums, Vf)));  // at most 64 * 127: exact in any order
  *scale = range.faulty ? __builtin_nanf("") : range.plain() ? range.largest / 127.0f : 0.0f;
}

template <int32_t kGroup>
void store_s8_groups(const float* x, int32_t n, int8_t* data, float* scales, int32_t* sums) {
  for (int32_t i = 0, g = 0; i < n; i += kGroup, ++g) {
    store_s8_group<kGroup>(x + i, data + i, scales + g, sums + g);
  }
}

// Columns [column, column + n) of one row. s8: column must be a multiple of the group, and so must n unless these are
// the row's last columns; x is then read up to the next multiple (pad it with zeros).
LEGATO_INLINE void store_columns(const Acts& acts, int64_t row, int32_t column, const float* x, int32_t n) {
  const int64_t first = row * acts.k_pad + column;
  if (acts.type == ActType::f32 || (acts.type == ActType::bf16 && kBf16Bytes == 4)) {
    float* out = static_cast<float*>(acts.data) + first;
    for (int32_t i = 0; i < n; i += kLanes) {
      const Vf v = load_n(x + i, smaller(n - i, kLanes));
      store_n(out + i, acts.type == ActType::bf16 ? rounded_to_bf16(v) : v, smaller(n - i, kLanes));
    }
  } else if (acts.type == ActType::bf16) {
    uint16_t* out = static_cast<uint16_t*>(acts.data) + first;
    for (int32_t i = 0; i < n; i += kLanes) {
      store_bf16_n(out + i, load_n(x + i, smaller(n - i, kLanes)), smaller(n - i, kLanes));
    }
  } else {
    const int64_t group = row * (acts.k_pad / acts.group) + column / acts.group;
    const auto store_groups = acts.group == 32 ? store_s8_groups<32> : store_s8_groups<64>;
    store_groups(x, n, static_cast<int8_t*>(acts.data) + first, acts.scales + group, acts.sums + group);
  }
}

// Zeros behind the last column (k) of one row. s8: from the next group on; store_columns has filled the group of k - 1.
LEGATO_INLINE void store_pad(const Acts& acts, int64_t row) {
  alignas(64) const float zeros[64] = {};
  const int32_t begin = acts.type == ActType::s8 ? round_up(acts.k, acts.group) : acts.k;
  if (begin < acts.k_pad) store_columns(acts, row, begin, zeros, acts.k_pad - begin);
}
