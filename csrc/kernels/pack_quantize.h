// Quantizers of f32 rows. Both refuse NaN, infinity and what their scales cannot hold, by a message; null on success.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace legato {

// One output column, symmetric: q[i] = round(w[i] / scale) + 128, scale = max |w| / 127.
const char* quantize_channel_i8(const float* w, int32_t k, uint8_t* q, float* scale);

// One output column in groups of 16: w[i] ~ scale * (step * q[i] + offset - 128), q in 0 .. 15, step in 1 .. 16, offset
// + 15 * step <= 255, scale = max |w| / 127. Of a few steps near (max - min) / 15 and a few offsets for each, the pair
// with the smallest squared error. Each 32 values make 16 bytes of `codes` (the first 16 in the low nibbles) and 3 of
// `heads`.
const char* quantize_channel_i4(const float* w, int32_t k, uint8_t* codes, uint8_t* heads, float* scale);

}  // namespace legato
