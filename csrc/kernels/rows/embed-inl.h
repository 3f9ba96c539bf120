// Rows of the embedding table, from the checkpoint's own layout to f32.
//
// Quantized rows are blocks of 32 values:
//   q8_0  f16 d, 32 int8                      d * q
//   q4_0  f16 d, 16 bytes                     d * (q - 8)
//   q4_1  f16 d, f16 m, 16 bytes              d * q + m
// Low nibbles are values 0 to 15, high nibbles 16 to 31.

LEGATO_INLINE uint16_t read_u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

LEGATO_INLINE void embed_q8_0(const uint8_t* table, int32_t width, float* out) {
  constexpr int32_t kBytes = 34;
  for (int32_t block = 0; block < width / 32; ++block, table += kBytes, out += 32) {
    const float d = float_from_f16(read_u16(table));
    for (int32_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(table[2 + i]));
  }
}

LEGATO_INLINE void embed_q4(const uint8_t* table, int32_t width, bool has_min, float* out) {
  const int32_t header = has_min ? 4 : 2;
  const float shift = has_min ? 0.0f : 8.0f;
  for (int32_t block = 0; block < width / 32; ++block, table += header + 16, out += 32) {
    const float d = float_from_f16(read_u16(table));
    const float m = has_min ? float_from_f16(read_u16(table + 2)) : 0.0f;
    for (int32_t i = 0; i < 16; ++i) {
      const uint8_t pair = table[header + i];
      out[i] = d * (static_cast<float>(pair & 15) - shift) + m;
      out[i + 16] = d * (static_cast<float>(pair >> 4) - shift) + m;
    }
  }
}

LEGATO_INLINE void embed_row(TableType type, const uint8_t* row, int32_t width, float* out) {
  switch (type) {
    case TableType::f32:
      __builtin_memcpy(out, row, static_cast<size_t>(width) * sizeof(float));
      break;
    case TableType::f16:
      for (int32_t i = 0; i < width; ++i) out[i] = float_from_f16(read_u16(row + 2 * i));
      break;
    case TableType::bf16:
      for (int32_t i = 0; i < width; ++i) out[i] = float_from_bf16(read_u16(row + 2 * i));
      break;
    case TableType::q8_0:
      embed_q8_0(row, width, out);
      break;
    case TableType::q4_0:
      embed_q4(row, width, false, out);
      break;
    case TableType::q4_1:
      embed_q4(row, width, true, out);
      break;
  }
}

void embed(const EmbedArgs& a, int32_t row_begin, int32_t row_end) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    float* out = a.out + row * a.out_stride;
    embed_row(a.type, a.table + a.tokens[row] * a.row_bytes, a.width, out);
    if (a.scale == 1.0f) continue;
    for (int32_t i = 0; i < a.width; ++i) out[i] *= a.scale;
  }
}
