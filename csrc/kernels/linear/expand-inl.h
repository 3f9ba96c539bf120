// Weights expanded once for many rows: bf16 to f32 (by the first tile of rows, see DotKeep), nibbles to bytes and their
// factors to f32. The values, and so the sums, are those of the packed weights; what is saved is to widen or unpack
// them again for each tile of rows. i4 is expanded for any number of rows, to the bytes of i8.

constexpr int32_t kExpandQ4Rows = 3 * kTileRows;  // fewer: not worth it

LEGATO_INLINE bool expands(const Weight& w, int32_t rows) {
  if (w.type == WeightType::i4) return true;
#if !defined(LEGATO_ISA_avx512_bf16)
  if (w.type == WeightType::bf16) return rows > kTileRows;
#endif
  return w.type == WeightType::q4 && rows >= kExpandQ4Rows;
}

// Bytes of a panel of q4 or i4 for `k` of K.
LEGATO_INLINE int64_t packed_bytes(const Weight& w, int32_t k) {
  if (w.type == WeightType::i4) return static_cast<int64_t>(k / (2 * kI4Group)) * (kI4Head + kI4Group) * kPanel;
  return static_cast<int64_t>(k / w.group) * ((w.has_min ? 4 : 2) + w.group / 2) * kPanel;
}

constexpr int32_t kBf16K = 96;

// For a single tile of rows: a part that stays in L1, and how far to ask ahead: beyond a part, which is read in one go.
constexpr int32_t kI4FewRowsK = 256;
constexpr int32_t kI4PrefetchBytes = 10 << 10;

// K that is expanded at once: as much as kExpandBytes or kI4ExpandBytes hold; of bf16, and of i4 for a single tile of
// rows, as much as stays in L1 beside the rest.
LEGATO_INLINE int32_t expanded_k(const Weight& w, int32_t rows) {
  constexpr int32_t kBytes = static_cast<int32_t>(kExpandBytes);
  static_assert(kBf16K * kPanel * sizeof(float) <= kExpandBytes);
  if (w.type == WeightType::bf16) return kBf16K;
  if (w.type == WeightType::i4) return rows <= kTileRows ? kI4FewRowsK : static_cast<int32_t>(kI4ExpandBytes) / kPanel;
  return kBytes / ((w.has_min ? 8 : 4) * kPanel + w.group * kPanel) * w.group;
}

// Where weights [k, ...) of a panel begin; k is a multiple of expanded_k.
LEGATO_INLINE const uint8_t* packed_at(const Weight& w, const uint8_t* panel, int32_t k) {
  if (w.type == WeightType::bf16) return panel + static_cast<int64_t>(k) * kPanel * 2;
  return panel + packed_bytes(w, k);
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

// The words of kLanes columns that hold p[column] in each of their four bytes.
LEGATO_INLINE Shorts four_times(const uint8_t* p) {
#if defined(LEGATO_ISA_portable)
  using Words = uint32_t __attribute__((vector_size(sizeof(Shorts))));
  return reinterpret_cast<Shorts>(Words{p[0], p[1], p[2], p[3]} * 0x01010101u);
#else
  const __m256i pattern =
      _mm256_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303, 0x04040404, 0x05050505, 0x06060606, 0x07070707);
#if defined(LEGATO_ISA_avx2) || defined(LEGATO_ISA_avx2_vnni)
  const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return reinterpret_cast<Shorts>(_mm256_shuffle_epi8(bytes, pattern));
#else
  const __m512i bytes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i behind = _mm256_or_si256(pattern, _mm256_set1_epi8(8));
  return reinterpret_cast<Shorts>(
      _mm512_shuffle_epi8(bytes, _mm512_inserti64x4(_mm512_castsi256_si512(pattern), behind, 1)));
#endif
#endif
}

constexpr int32_t kI4Asked = 11;  // of the 19 lines of a pair of groups; a single tile of rows asks for the others

// Pairs of groups as pack.h lays them out, into [k / 4][64][4] u8 as i8_panel holds them: step * code + offset. A code
// is at most 15 and a step 16, so that their products stay within a byte and two of them multiply in 16 bits. `lines`
// cache lines are asked for with each pair of groups.
void expand_i4(const uint8_t* groups, int32_t k, int32_t lines, Ahead& ahead, uint8_t* out) {
  using Bytes = uint8_t __attribute__((vector_size(sizeof(Shorts))));
  constexpr int32_t kLines = kI4Group / kWord, kHalfBytes = kI4Group * kPanel;
  for (int32_t i = 0; i < k / (2 * kI4Group); ++i, out += 2 * kHalfBytes) {
    ahead.ask(lines);
    const uint8_t* codes = groups + kI4Head * kPanel;
    for (int32_t c = 0; c < kPanel; c += kLanes) {
      const Shorts steps = four_times(groups + c);
      const Shorts low_steps = (steps & uint16_t{15}) + uint16_t{1};
      const Shorts high_steps = ((steps >> 4) & uint16_t{15}) + uint16_t{1};
      const Bytes low_offsets = reinterpret_cast<Bytes>(four_times(groups + kPanel + c));
      const Bytes high_offsets = reinterpret_cast<Bytes>(four_times(groups + 2 * kPanel + c));
      LEGATO_UNROLL for (int32_t line = 0; line < kLines; ++line) {
        const int32_t at = (line * kPanel + c) * kWord;
        const Shorts both = load_as<Shorts>(codes + at);
        const Shorts low = (both & uint16_t{0x0f0f}) * low_steps, high = ((both >> 4) & uint16_t{0x0f0f}) * high_steps;
        const Bytes low_bytes = reinterpret_cast<Bytes>(low) + low_offsets;
        const Bytes high_bytes = reinterpret_cast<Bytes>(high) + high_offsets;
        __builtin_memcpy(out + at, &low_bytes, sizeof(low_bytes));
        __builtin_memcpy(out + kHalfBytes + at, &high_bytes, sizeof(high_bytes));
      }
    }
    groups = codes + kHalfBytes;
  }
}
