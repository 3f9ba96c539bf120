#include "kernels/pack_quantize.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace legato {
namespace {

constexpr char kNotFinite[] = "a weight is NaN or infinite";
constexpr float kMostStep = 16.0f;
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

using Lanes = float __attribute__((vector_size(16)));
constexpr int32_t kSide = 4;  // i4 groups that are looked at side by side

Lanes splat(float x) { return Lanes{x, x, x, x}; }
Lanes smaller(Lanes a, Lanes b) { return a < b ? a : b; }
Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }
Lanes clamp(Lanes x, Lanes low, Lanes high) { return smaller(larger(x, low), high); }
Lanes nearest(Lanes x) { return (x + 0x1.8p23f) - 0x1.8p23f; }  // whole number, ties to even, for |x| < 2^22

// Value i of each group, in units of the channel's scale, as an unsigned byte would hold it.
struct Groups {
  Lanes x[kI4Group];
};

struct Grid {
  Lanes step;
  Lanes offset;
};

struct Fit {
  Lanes error;  // squared
  Lanes mean;   // of what is left
};

// The nearest point's number. Bounds that are variables become one instruction each, constants would not.
Lanes code_of(Lanes x, const Grid& grid, Lanes inverse_step, Lanes end) {
  return nearest((clamp(x, grid.offset, end) - grid.offset) * inverse_step);
}

Fit measure(const Groups& groups, const Grid& grid) {
  const Lanes inverse_step = 1.0f / grid.step, end = grid.offset + 15.0f * grid.step;
  Lanes error = {}, sum = {};
  for (const Lanes& x : groups.x) {
    const Lanes gap = (x - grid.offset) - code_of(x, grid, inverse_step, end) * grid.step;
    error += gap * gap;
    sum += gap;
  }
  return {error, sum * (1.0f / kI4Group)};
}

// The grid with the smallest error of those that are tried: the two whole steps around the one that just covers the
// group, each with three offsets, each of these once as it is and once moved by what its codes leave.
Grid search(const Groups& groups) {
  Lanes low = groups.x[0], high = groups.x[0];
  for (const Lanes& x : groups.x) {
    low = smaller(low, x);
    high = larger(high, x);
  }
  const Lanes covers = nearest((high - low) * (1.0f / 15.0f) - 0.5f), middle = 0.5f * (low + high);
  Grid best = {};
  Lanes least = splat(std::numeric_limits<float>::infinity());
  for (const float more : {0.0f, 1.0f}) {
    const Lanes step = clamp(covers + more, splat(1.0f), splat(kMostStep));
    for (const float shift : {-1.0f / 3.0f, 0.0f, 1.0f / 3.0f}) {
      Grid grid = {step, middle + (shift - 7.5f) * step};
      for (int32_t pass = 0; pass < 2; ++pass) {
        grid.offset = nearest(clamp(grid.offset, splat(0.0f), 255.0f - 15.0f * step));
        const Fit fit = measure(groups, grid);
        best.step = fit.error < least ? grid.step : best.step;
        best.offset = fit.error < least ? grid.offset : best.offset;
        least = smaller(fit.error, least);
        grid.offset += fit.mean;
      }
    }
  }
  return best;
}

// kSide groups as i4 holds them.
void write_i4(const Groups& groups, const Grid& grid, uint8_t* codes, uint8_t* heads) {
  using Words = int32_t __attribute__((vector_size(sizeof(Lanes))));
  const Words step = __builtin_convertvector(grid.step - 1.0f, Words),
              offset = __builtin_convertvector(grid.offset, Words);
  Words q[kI4Group];
  for (int32_t i = 0; i < kI4Group; ++i)
    q[i] =
        __builtin_convertvector(code_of(groups.x[i], grid, 1.0f / grid.step, grid.offset + 15.0f * grid.step), Words);
  for (int32_t lane = 0; lane < kSide; lane += 2, codes += kI4Group, heads += kI4Head) {
    for (int32_t i = 0; i < kI4Group; ++i) codes[i] = static_cast<uint8_t>(q[i][lane] | q[i][lane + 1] << 4);
    heads[0] = static_cast<uint8_t>(step[lane] | step[lane + 1] << 4);
    heads[1] = static_cast<uint8_t>(offset[lane]);
    heads[2] = static_cast<uint8_t>(offset[lane + 1]);
  }
}

// max |w| / 127 and its inverse, both 0 for values that vanish. False for a NaN or an infinity.
bool channel_scale(const float* w, int32_t k, float* scale, float* inverse) {
  const int32_t bits = largest_magnitude_bits(w, k);
  const float largest = std::bit_cast<float>(bits);
  const bool vanishes = largest < kSmallest;
  *scale = vanishes ? 0.0f : largest / 127.0f;
  *inverse = vanishes ? 0.0f : 127.0f / largest;
  return bits < 0x7f800000;
}

}  // namespace

const char* quantize_channel_i8(const float* w, int32_t k, uint8_t* q, float* scale) {
  float inverse;
  if (!channel_scale(w, k, scale, &inverse)) return kNotFinite;
  for (int32_t i = 0; i < k; ++i) q[i] = static_cast<uint8_t>(round_to_int(w[i] * inverse) + 128);
  return nullptr;
}

const char* quantize_channel_i4(const float* w, int32_t k, uint8_t* codes, uint8_t* heads, float* scale) {
  float inverse;
  if (!channel_scale(w, k, scale, &inverse)) return kNotFinite;
  constexpr int32_t kValues = kSide * kI4Group, kPairs = kSide / 2;
  for (int32_t begin = 0; begin < k; begin += kValues, codes += kPairs * kI4Group, heads += kPairs * kI4Head) {
    float values[kI4Group][kSide];
    for (int32_t j = 0; j < kValues; ++j)  // past the end: its last value
      values[j % kI4Group][j / kI4Group] = w[std::min(begin + j, k - 1)] * inverse + 128.0f;
    Groups groups;
    std::memcpy(&groups, values, sizeof groups);
    write_i4(groups, search(groups), codes, heads);
  }
  return nullptr;
}

}  // namespace legato
