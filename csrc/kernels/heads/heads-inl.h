// qkv rows to rotated q, and to K and V in the cache.

// out = x / sqrt(mean(x^2) + eps) * weight
LEGATO_INLINE void norm_head(const float* x, const float* weight, float eps, int32_t n, float* out) {
  const Vf factor = splat(inverse_sqrt(sum_squares(x, n, 0.0f) / static_cast<float>(n) + eps));
  for (int32_t i = 0; i < n; i += kLanes) {
    const int lanes = smaller(n - i, kLanes);
    store_n(out + i, load_n(x + i, lanes) * factor * load_n(weight + i, lanes), lanes);
  }
}

// Rotates the pairs (i, i + rope_dim / 2) of x. cos_sin: rope_dim / 2 cosines, then as many sines. x may be out.
LEGATO_INLINE void rotate_head(const float* cos_sin, int32_t rope_dim, const float* x, float* out) {
  const int32_t half = rope_dim / 2;
  for (int32_t i = 0; i < half; i += kLanes) {
    const int n = smaller(half - i, kLanes);
    const Vf c = load_some(cos_sin + i, n), s = load_some(cos_sin + half + i, n);
    const Vf a = load_some(x + i, n), b = load_some(x + half + i, n);
    store_some(out + i, fma(a, c, zero() - b * s), n);
    store_some(out + half + i, fma(b, c, a * s), n);
  }
}

// One head of q or k: norm if `weight` is set, rope if rope_dim > 0.
LEGATO_INLINE void prepare_head(const HeadsArgs& a, const float* x, const float* weight, const float* cos_sin,
                                float* out) {
  const int32_t dim = a.kv.head_dim;
  if (weight != nullptr) {
    norm_head(x, weight, a.eps, dim, out);
    x = out;
  }
  rotate_head(cos_sin, a.rope_dim, x, out);
  for (int32_t i = a.rope_dim; i < dim && x != out; i += kLanes) {
    const int n = smaller(dim - i, kLanes);
    store_some(out + i, load_some(x + i, n), n);
  }
}

LEGATO_INLINE void write_head(const HeadsArgs& a, int32_t head, int64_t slot, const float* k, const float* v) {
  const int32_t in_block = static_cast<int32_t>(slot % a.kv.block_size);
  uint8_t* tile = cache_tile(a.kv, slot / a.kv.block_size, head, in_block / kKvTile);
  switch (a.kv.type) {
    case KvType::f32:
      return write_slot_f32(tile, a.kv, in_block % kKvTile, k, v);
    case KvType::bf16:
      return write_slot_bf16(tile, a.kv, in_block % kKvTile, k, v);
    case KvType::i8:
      return write_slot_coded<CodeI8>(tile, a.kv, in_block % kKvTile, k, v);
    case KvType::e4m3:
      return write_slot_coded<CodeE4m3>(tile, a.kv, in_block % kKvTile, k, v);
  }
}

void heads_to_cache(const HeadsArgs& a, int32_t row_begin, int32_t row_end) {
  const int32_t dim = a.kv.head_dim;
  alignas(64) float key[kMaxHeadDim] = {}, value[kMaxHeadDim] = {};  // heads write `dim` values: the pad stays zero
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* q = a.x + row * a.x_stride;
    const float* k = q + static_cast<int64_t>(a.heads) * dim;
    const float* v = k + static_cast<int64_t>(a.kv.kv_heads) * dim;
    const float* cos_sin = a.rope_dim > 0 ? a.cos_sin + static_cast<int64_t>(a.positions[row]) * a.rope_dim : nullptr;
    for (int32_t h = 0; h < a.heads; ++h) {
      prepare_head(a, q + h * dim, a.q_norm, cos_sin, a.q + row * a.q_stride + h * dim);
    }
    for (int32_t h = 0; h < a.kv.kv_heads; ++h) {
      prepare_head(a, k + h * dim, a.k_norm, cos_sin, key);
      if (dim != a.kv.head_pad) __builtin_memcpy(value, v + h * dim, static_cast<size_t>(dim) * sizeof(float));
      write_head(a, h, a.kv_slots[row], key, dim != a.kv.head_pad ? value : v + h * dim);
    }
  }
}
