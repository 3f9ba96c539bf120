// Source rows in the checkpoint's own layout. GGUF blocks hold 32 values: f16 d, then for q4_1 f16 m, then 32 int8, or
// 16 bytes whose low nibbles are values 0 .. 15 and high nibbles values 16 .. 31.
#include <cstring>

#include "kernels/pack.h"
#include "kernels/pack_convert.h"

namespace legato {
namespace {

constexpr int32_t kBlock = 32;

uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// Codes are copied first: a compiler that knows that `out` does not overlap them uses vectors.
void dequantize_q8_0(const uint8_t* row, int32_t k, float* out) {
  for (int32_t b = 0; b < k / kBlock; ++b, row += 34, out += kBlock) {
    const float d = f16_to_f32(load_u16(row));
    int8_t codes[kBlock];
    std::memcpy(codes, row + 2, sizeof codes);
    for (int32_t j = 0; j < kBlock; ++j) out[j] = d * static_cast<float>(codes[j]);
  }
}

void dequantize_nibbles(const uint8_t* nibbles, float d, int32_t zero, float m, float* out) {
  constexpr int32_t kHalf = kBlock / 2;
  uint8_t pairs[kHalf];
  std::memcpy(pairs, nibbles, sizeof pairs);
  for (int32_t j = 0; j < kHalf; ++j) out[j] = d * static_cast<float>((pairs[j] & 15) - zero) + m;
  for (int32_t j = 0; j < kHalf; ++j) out[j + kHalf] = d * static_cast<float>((pairs[j] >> 4) - zero) + m;
}

}  // namespace

size_t source_row_bytes(TableType type, int32_t k) {
  const size_t values = static_cast<size_t>(k);
  const size_t blocks = k % kBlock == 0 ? values / kBlock : 0;
  switch (type) {
    case TableType::f32:
      return values * 4;
    case TableType::f16:
    case TableType::bf16:
      return values * 2;
    case TableType::q8_0:
      return blocks * 34;
    case TableType::q4_0:
      return blocks * 18;
    case TableType::q4_1:
      return blocks * 20;
  }
  return 0;
}

void dequantize_row(TableType source, const uint8_t* row, int32_t k, float* out) {
  switch (source) {
    case TableType::f32:
      std::memcpy(out, row, static_cast<size_t>(k) * 4);
      return;
    case TableType::f16:
      for (int32_t i = 0; i < k; ++i) out[i] = f16_to_f32(load_u16(row + 2 * i));
      return;
    case TableType::bf16:
      for (int32_t i = 0; i < k; ++i) out[i] = bf16_to_f32(load_u16(row + 2 * i));
      return;
    case TableType::q8_0:
      return dequantize_q8_0(row, k, out);
    case TableType::q4_0:
      for (int32_t b = 0; b < k / kBlock; ++b, row += 18)
        dequantize_nibbles(row + 2, f16_to_f32(load_u16(row)), 8, 0.0f, out + b * kBlock);
      return;
    case TableType::q4_1:
      for (int32_t b = 0; b < k / kBlock; ++b, row += 20)
        dequantize_nibbles(row + 4, f16_to_f32(load_u16(row)), 0, f16_to_f32(load_u16(row + 2)), out + b * kBlock);
      return;
  }
}

}  // namespace legato
