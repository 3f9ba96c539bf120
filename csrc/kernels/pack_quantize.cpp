#include "kernels/pack_quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/pack_convert.h"

namespace legato {
namespace {

constexpr int32_t kMaxGroup = 128;
constexpr float kSmallest = 0x1p-100f;  // the inverse of less would overflow

// Nearest integer, ties to even, for |x| < 2^22: the sum's low mantissa bits are the integer.
int32_t round_to_int(float x) { return std::bit_cast<int32_t>(x + 0x1.8p23f) - 0x4b400000; }

// Bit patterns of finite magnitudes order like the numbers; NaN and infinity come out at or above 0x7f800000. Sixteen
// maxima side by side, so that none waits for the one before.
int32_t largest_magnitude_bits(const float* w, int32_t k) {
  constexpr int32_t kLanes = 16;
  int32_t lanes[kLanes] = {};
  int32_t i = 0;
  for (; i + kLanes <= k; i += kLanes)
    for (int32_t j = 0; j < kLanes; ++j) lanes[j] = std::max(lanes[j], std::bit_cast<int32_t>(w[i + j]) & 0x7fffffff);
  int32_t largest = *std::max_element(lanes, lanes + kLanes);
  for (; i < k; ++i) largest = std::max(largest, std::bit_cast<int32_t>(w[i]) & 0x7fffffff);
  return largest;
}

struct Line {
  uint16_t d;
  uint16_t m;
  float error;
};

// Nearest points of the line d * q + m, and the squared error.
float assign(const float* w, int32_t count, float d, float m, uint8_t* q) {
  const float inverse = d > kSmallest ? 1.0f / d : 0.0f;
  float error = 0.0f;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t code = round_to_int(std::clamp((w[i] - m) * inverse, 0.0f, 15.0f));
    const float gap = w[i] - (d * static_cast<float>(code) + m);
    q[i] = static_cast<uint8_t>(code);
    error += gap * gap;
  }
  return error;
}

// The least-squares line through (q, w), rounded to f16. False when all codes are equal.
bool fit(const float* w, int32_t count, const uint8_t* q, Line* line) {
  float sum_q = 0, sum_qq = 0, sum_w = 0, sum_qw = 0;
  for (int32_t i = 0; i < count; ++i) {
    const float code = static_cast<float>(q[i]);
    sum_q += code;
    sum_qq += code * code;
    sum_w += w[i];
    sum_qw += code * w[i];
  }
  const float n = static_cast<float>(count);
  const float determinant = n * sum_qq - sum_q * sum_q;
  if (determinant <= 0.0f) return false;
  const float d = (n * sum_qw - sum_q * sum_w) / determinant;
  line->d = f32_to_f16(d);
  line->m = f32_to_f16((sum_w - d * sum_q) / n);
  return true;
}

}  // namespace

const char* quantize_channel_i8(const float* w, int32_t k, uint8_t* q, float* scale) {
  const int32_t bits = largest_magnitude_bits(w, k);
  if (bits >= 0x7f800000) return "a weight is NaN or infinite";
  const float largest = std::bit_cast<float>(bits);
  const bool vanishes = largest < kSmallest;
  *scale = vanishes ? 0.0f : largest / 127.0f;
  const float inverse = vanishes ? 0.0f : 127.0f / largest;
  for (int32_t i = 0; i < k; ++i) q[i] = static_cast<uint8_t>(round_to_int(w[i] * inverse) + 128);
  return nullptr;
}

const char* quantize_group_q4(const float* w, int32_t count, uint8_t* q, uint16_t* d, uint16_t* m) {
  const int32_t bits = largest_magnitude_bits(w, count);
  if (bits >= 0x7f800000) return "a weight is NaN or infinite";
  if (std::bit_cast<float>(bits) > 65504.0f) return "a weight is too large for the f16 minimum of its group";
  const auto [low, high] = std::minmax_element(w, w + count);
  uint8_t trial[kMaxGroup];

  Line best{0, f32_to_f16(0.5f * (*low + *high)), 0.0f};  // one point: what a constant group needs
  best.error = assign(w, count, 0.0f, f16_to_f32(best.m), q);
  for (float steps = 13.5f; steps <= 15.5f; steps += 0.5f) {
    assign(w, count, (*high - *low) / steps, *low, trial);
    Line line;
    if (!fit(w, count, trial, &line)) break;
    line.error = assign(w, count, f16_to_f32(line.d), f16_to_f32(line.m), trial);
    if (line.error >= best.error) continue;
    best = line;
    std::copy_n(trial, count, q);
  }
  *d = best.d;
  *m = best.m;
  return nullptr;
}

}  // namespace legato
