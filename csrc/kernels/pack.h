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
//
// Pad columns and pad k hold q = zero point (d = m = 0), or 0.0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace legato {

// Source rows in the checkpoint's own layout (see TableType), in the order of the packed columns.
struct PackArgs {
  TableType source;
  const uint8_t* const* rows;  // [n] pointers to source rows; the caller has already fused, permuted and interleaved
  int32_t n;
  int32_t k;
};

// Fills type, sizes and panel_bytes for a target; panels stays null. Returns total bytes (n_pad / 64 * panel_bytes).
size_t describe_weight(WeightType type, int32_t n, int32_t k, int32_t group, int32_t zero, int32_t has_min,
                       Weight* out);

// Packs panels [panel_begin, panel_end) of `w` into `out` (the first byte of panel 0). Own-number targets (f32 from
// f32; f16 from f16; bf16 from bf16; i8 group 32 from q8_0; q4 from q4_0 / q4_1) keep the numbers exactly; f32, bf16,
// i8 per channel and q4 with min (asymmetric, per group) take any source through f32. Null on success, else a message.
const char* pack_weight(const PackArgs& args, const Weight& w, int32_t panel_begin, int32_t panel_end, uint8_t* out);

// Exact f32 values of one source row.
void dequantize_row(TableType source, const uint8_t* row, int32_t k, float* out);

// f32 values of one packed output column, for tests and `inspect --verify`.
void unpack_column(const Weight& w, int32_t column, float* out);

}  // namespace legato
