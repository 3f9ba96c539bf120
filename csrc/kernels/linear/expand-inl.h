// Weights expanded once for many rows: bf16 to f32 (by the first tile of rows, see DotKeep), nibbles to bytes and their
// factors to f32. The values, and so the sums, are those of the packed weights; what is saved is to widen or unpack
// them again for each tile of rows.

constexpr int32_t kExpandRows = 3 * kTileRows;  // fewer: not worth it

LEGATO_INLINE bool expands(const Weight& w) {
#if defined(LEGATO_ISA_avx512_bf16)
  return w.type == WeightType::q4;
#else
  return w.type == WeightType::q4 || w.type == WeightType::bf16;
#endif
}

// K that is expanded at once: as much as kExpandBytes hold.
LEGATO_INLINE int32_t expanded_k(const Weight& w) {
  constexpr int32_t kBytes = static_cast<int32_t>(kExpandBytes);
  if (w.type == WeightType::bf16) return kBytes / (kPanel * 4);
  return kBytes / ((w.has_min ? 8 : 4) * kPanel + w.group * kPanel) * w.group;
}

// Where weights [k, ...) of a panel begin; k is a multiple of expanded_k.
LEGATO_INLINE const uint8_t* packed_at(const Weight& w, const uint8_t* panel, int32_t k) {
  if (w.type == WeightType::bf16) return panel + static_cast<int64_t>(k) * kPanel * 2;
  const int64_t group_bytes = (w.has_min ? 4 : 2) * kPanel + w.group / 2 * kPanel;
  return panel + k / w.group * group_bytes;
}

// Groups as pack.h lays them out, into: [64] f32 d, [64] f32 m if has_min, then [group / 4][64][4] codes.
void expand_q4(const Weight& w, const uint8_t* groups, int32_t k, uint8_t* out) {
  const int32_t factors = w.has_min ? 2 * kPanel : kPanel, half_bytes = w.group / 2 * kPanel;
  for (int32_t i = 0; i < k / w.group; ++i) {
    float* wide = reinterpret_cast<float*>(out);
    for (int32_t c = 0; c < factors; c += kLanes)
      store(wide + c, load_f16(reinterpret_cast<const uint16_t*>(groups) + c));
    groups += factors * 2;
    out += factors * 4;
    for (int32_t b = 0; b < half_bytes; b += static_cast<int32_t>(sizeof(Shorts))) {
      const Shorts both = load_as<Shorts>(groups + b);
      const Shorts low = both & uint16_t{0x0f0f}, high = (both >> 4) & uint16_t{0x0f0f};
      __builtin_memcpy(out + b, &low, sizeof(low));
      __builtin_memcpy(out + half_bytes + b, &high, sizeof(high));
    }
    groups += half_bytes;
    out += 2 * half_bytes;
  }
}
