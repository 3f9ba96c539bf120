// Packed weight layouts and the packers that make them. Layout ids are stored in the engine file; a change of layout is
// a new id. All layouts are shared by every ISA level.
//
//   layout            one 64-column panel
//   f32_panel    (1)  [k_pad][64] f32
//   f16_panel    (2)  [k_pad][64] f16
//   bf16_panel   (3)  [k_pad / 2][64][2] bf16
//   i8_panel     (4)  [k_pad / 4][64][4] u8 (q + 128), then [64] f32 channel scales
//   i8_grouped   (5)  per group: [64] f16 d, then [group / 4][64][4] u8 (q + 128)
//   q4_grouped   (6)  per group: [64] f16 d, [64] f16 m if has_min, then [group / 8][64][4] bytes: the low nibble of
//                     byte (i, c, j) is k = 4 i + j of the group, the high nibble k = group / 2 + 4 i + j
//   i4_panel     (7)  per 32 of K, two groups: [64] u8 steps - 1 (low nibble: of the first group), [2][64] u8
//                     offsets, then [4][64][4] bytes: low nibbles are q of the first group, high ones of the second.
//                     Then [64] f32 channel scales. (step * q + offset) mod 256 is the byte that i8_panel would hold
//
// Pad columns hold q = zero point with d = m = 0, or 0.0; so do whole pad groups. (i4: offset 128, and q 0.) What a
// partly filled last group holds in its pad is of no account: activations are 0 there.
//
// For a glu epilogue gate and up panels alternate, so each is padded to whole panels by null rows: n = 2 * (width
// rounded up to 64).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace legato {

// One source row in the checkpoint's own layout. Null data: a pad column.
struct SourceRow {
  TableType type;
  const uint8_t* data;
};

// Source rows in the order of the packed columns: the caller has already fused, permuted and interleaved them.
struct PackArgs {
  const SourceRow* rows;  // [n]
  int32_t n;
  int32_t k;
};

// Bytes of one source row of k values; 0 when k is not a whole number of blocks.
size_t source_row_bytes(TableType type, int32_t k);

// Fills type, sizes and panel_bytes for a target; panels stays null. Returns total bytes (n_pad / 64 * panel_bytes), or
// 0 when no layout holds such a weight: f32, f16, bf16 and i8 have group, zero and has_min 0 (i8 also group 32); q4 has
// group 32 and zero in 0 .. 15, i4 group 16.
size_t describe_weight(WeightType type, int32_t n, int32_t k, int32_t group, int32_t zero, int32_t has_min,
                       Weight* out);

// The number in the table above.
int32_t layout_id(const Weight& w);

// Packs panels [panel_begin, panel_end) of `w` into `out` (the first byte of panel 0). Own-number targets (f32 from
// f32; f16 from f16; bf16 from bf16; i8 group 32 from q8_0; q4 from q4_0 / q4_1) keep the numbers exactly; f32, bf16,
// i8 per channel and i4 take any source through f32. Null on success, else a message.
const char* pack_weight(const PackArgs& args, const Weight& w, int32_t panel_begin, int32_t panel_end, uint8_t* out);

// Exact f32 values of one source row.
void dequantize_row(TableType source, const uint8_t* row, int32_t k, float* out);

// The k f32 values of one packed output column, for tests and `inspect --verify`.
void unpack_column(const Weight& w, int32_t column, float* out);

}  // namespace legato
