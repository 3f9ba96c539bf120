// Addresses and values of the paged KV cache (the layout is drawn in kernels.h).

// The K tile of kv head `head` that is tile `tile` of physical block `block`; its V tile is tile_bytes behind.
LEGATO_INLINE uint8_t* cache_tile(const KvView& kv, int64_t block, int32_t head, int32_t tile) {
  const int64_t index = static_cast<int64_t>(head) * kv.tiles_per_block + tile;
  return kv.base + block * kv.block_bytes + kv.layer_offset + index * 2 * kv.tile_bytes;
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
    for (int32_t i = 0; i < kLanes; ++i) keys[(d + i) / 2 * kKvTile * 2 + i % 2] = lanes[i];
    store_bf16(lanes, load(v + d));
    for (int32_t i = 0; i < kLanes; ++i) values[(d + i) * 2] = lanes[i];
  }
}
