// Addresses and values of the paged KV cache (the layout is drawn in kernels.h).

// The K tile of kv head `head` that is tile `tile` of physical block `block`; its V tile is tile_bytes behind.
LEGATO_INLINE uint8_t* cache_tile(const KvView& kv, int64_t block, int32_t head, int32_t tile) {
  const int64_t index = static_cast<int64_t>(head) * kv.tiles_per_block + tile;
  return kv.base + block * kv.block_bytes + kv.layer_offset + index * kv.pair_bytes;
}

// The bf16 scales of the slots of a K tile; those of its V tile follow.
LEGATO_INLINE uint16_t* cache_scales(const KvView& kv, uint8_t* tile) {
  return reinterpret_cast<uint16_t*>(tile + 2 * kv.tile_bytes);
}
LEGATO_INLINE const uint16_t* cache_scales(const KvView& kv, const uint8_t* tile) {
  return reinterpret_cast<const uint16_t*>(tile + 2 * kv.tile_bytes);
}

// Writes one slot's K and V of one head. k and v hold head_pad values, the pad zeros.
LEGATO_INLINE void write_slot_f32(uint8_t* tile, const KvView& kv, int32_t slot, const float* k, const float* v) {
  float* keys = reinterpret_cast<float*>(tile) + slot;
  for (int32_t d = 0; d < kv.head_pad; ++d) keys[d * kKvTile] = k[d];
  float* values = reinterpret_cast<float*>(tile + kv.tile_bytes) + slot * kv.head_pad;
  for (int32_t d = 0; d < kv.head_pad; d += kLanes) store(values + d, load(v + d));
}

LEGATO_INLINE void write_slot_bf16(uint8_t* tile, const KvView& kv, int32_t slot, const float* k, const float* v) {
  uint16_t* keys = reinterpret_cast<uint16_t*>(tile) + slot * 2;
  uint16_t* values = reinterpret_cast<uint16_t*>(tile + kv.tile_bytes) + slot / 2 * kv.head_pad * 2 + slot % 2;
  for (int32_t d = 0; d < kv.head_pad; d += kLanes) {
    uint16_t lanes[kLanes];
    store_bf16(lanes, load(k + d));
    for (int32_t i = 0; i < kLanes; i += 2) {
      __builtin_memcpy(keys + (d + i) * kKvTile, lanes + i, 2 * sizeof(uint16_t));
    }
    store_every_second(values + d * 2, bf16_bits(load(v + d)));
  }
}

// How the codes of a slot are made: the largest magnitude of a head becomes kLargest.
struct CodeI8 {
  static constexpr float kLargest = 127.0f;
  static constexpr int32_t kPlace[4] = {0, 1, 2, 3};  // of each of four values
  static LEGATO_INLINE Vi encode(Vf v) { return to_int(v) + 128; }
};

// Attention reads bytes 0 and 2 of four as one pair and bytes 1 and 3 as the other. What is below half of the smallest
// normal number, 2^-6, is zero: with the largest at 448, subnormals would add nothing that shows.
struct CodeE4m3 {
  static constexpr float kLargest = 448.0f;
  static constexpr int32_t kPlace[4] = {0, 2, 1, 3};
  static LEGATO_INLINE Vi encode(Vf v) {
    const Vi bits = reinterpret_cast<Vi>(v), magnitude = bits & 0x7fffffff;
    // Nearest even at 3 bits of mantissa, and the exponent's bias from 127 to 7.
    const Vi code = (magnitude + 0x7ffff + ((magnitude >> 20) & 1)) >> 20;
    constexpr int32_t kLeast = (127 - 6) << 3, kBias = 120 << 3;
    const Vi normal = (code < kLeast ? kLeast - Vi{} : code) - kBias;
    return magnitude < (127 - 7) << 23 ? Vi{} : normal | ((bits >> 24) & 0x80);
  }
};

// x[head_pad] to codes, which `place` puts where they belong, kLanes at a time, and their scale.
template <class Code, class Place>
LEGATO_INLINE uint16_t encode_head(const float* x, int32_t head_pad, const Place& place) {
  const Range range = range_of(x, head_pad);
  const bool plain = range.plain();
  const uint16_t scale = plain ? bf16_from_float(range.largest / Code::kLargest) : 0;
  const Vf inverse = splat(plain ? 1.0f / float_from_bf16(scale) : 0.0f);
  for (int32_t d = 0; d < head_pad; d += kLanes) place(d, Code::encode(plain ? load(x + d) * inverse : zero()));
  return range.faulty ? bf16_from_float(__builtin_nanf("")) : scale;
}

template <class Code>
void write_slot_coded(uint8_t* tile, const KvView& kv, int32_t slot, const float* k, const float* v) {
  uint8_t* keys = tile + slot * 4;
  uint8_t* values = tile + kv.tile_bytes + static_cast<int64_t>(slot / 4) * kv.head_pad * 4 + Code::kPlace[slot % 4];
  uint16_t* scales = cache_scales(kv, tile) + slot;
  scales[0] = encode_head<Code>(k, kv.head_pad, [keys](int32_t d, Vi codes) {
    uint8_t lanes[kLanes];
    store_bytes(lanes, codes);
    for (int32_t i = 0; i < kLanes; i += 4) {
      uint8_t word[4];
      for (int32_t j = 0; j < 4; ++j) word[Code::kPlace[j]] = lanes[i + j];
      __builtin_memcpy(keys + (d + i) * kKvTile, word, sizeof(word));
    }
  });
  scales[kKvTile] =
      encode_head<Code>(v, kv.head_pad, [values](int32_t d, Vi codes) { store_every_fourth(values + d * 4, codes); });
}
