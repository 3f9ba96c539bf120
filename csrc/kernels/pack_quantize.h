// Quantizers of f32 rows. Both refuse NaN, infinity and what their scales cannot hold, by a message; null on success.
#pragma once

#include <cstdint>

namespace legato {

// One output column, symmetric: q[i] = round(w[i] / scale) + 128, scale = max |w| / 127.
const char* quantize_channel_i8(const float* w, int32_t k, uint8_t* q, float* scale);

// One group, asymmetric: w[i] ~ d * q[i] + m, q in 0 .. 15, d and m the nearest f16 numbers. Of a few step sizes near
// (max - min) / 15, each followed by the least-squares line through (q, w), the one with the smallest squared error.
const char* quantize_group_q4(const float* w, int32_t count, uint8_t* q, uint16_t* d, uint16_t* m);

}  // namespace legato
