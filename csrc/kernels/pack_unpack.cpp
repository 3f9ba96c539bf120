#include "kernels/pack.h"

#include <algorithm>
#include <cstring>

#include "kernels/pack_convert.h"

namespace legato {
namespace {

template <typename T>
T load(const uint8_t* base, size_t index) {
  T value;
  std::memcpy(&value, base + index * sizeof(T), sizeof(T));
  return value;
}

// Byte of value k of column c in [k / 4][64][4].
size_t quad(size_t k, size_t c) { return (k / 4 * kPanel + c) * 4 + k % 4; }

void unpack_group(const Weight& w, const uint8_t* group, size_t c, int32_t count, float* out) {
  const float d = f16_to_f32(load<uint16_t>(group, c));
  const float m = w.has_min ? f16_to_f32(load<uint16_t>(group, kPanel + c)) : 0.0f;
  const uint8_t* codes = group + static_cast<size_t>(1 + w.has_min) * kPanel * 2;
  const size_t half = static_cast<size_t>(w.group) / 2;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    int32_t q;
    if (w.type == WeightType::i8) {
      q = codes[quad(i, c)] - 128;
    } else {
      q = (i < half ? codes[quad(i, c)] & 15 : codes[quad(i - half, c)] >> 4) - w.zero;
    }
    out[i] = d * static_cast<float>(q) + m;
  }
}

// One column of two groups of i4, drawn in pack.h.
void unpack_i4(const uint8_t* groups, size_t c, float scale, int32_t count, float* out) {
  const int32_t steps[2] = {(groups[c] & 15) + 1, (groups[c] >> 4) + 1};
  const uint8_t* codes = groups + kI4Head * kPanel;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const size_t group = i / kI4Group;
    const uint8_t pair = codes[quad(i % kI4Group, c)];
    const int32_t code = group == 0 ? pair & 15 : pair >> 4;
    const auto byte = static_cast<uint8_t>(steps[group] * code + groups[(1 + group) * kPanel + c]);
    out[i] = scale * static_cast<float>(byte - 128);
  }
}

}  // namespace

void unpack_column(const Weight& w, int32_t column, float* out) {
  const uint8_t* panel = w.panels + static_cast<size_t>(column / kPanel) * w.panel_bytes;
  const size_t c = static_cast<size_t>(column % kPanel);
  if (w.type == WeightType::i4) {
    const float scale = load<float>(panel + w.panel_bytes - kPanel * sizeof(float), c);
    constexpr int32_t kPair = 2 * kI4Group;
    for (int32_t begin = 0; begin < w.k; begin += kPair, panel += (kI4Head + kI4Group) * kPanel)
      unpack_i4(panel, c, scale, std::min(kPair, w.k - begin), out + begin);
    return;
  }
  if (w.group > 0) {
    const size_t group_bytes = w.panel_bytes / static_cast<size_t>(w.k_pad / w.group);
    for (int32_t begin = 0; begin < w.k; begin += w.group, panel += group_bytes)
      unpack_group(w, panel, c, std::min(w.group, w.k - begin), out + begin);
    return;
  }
  const size_t k_pad = static_cast<size_t>(w.k_pad);
  const float scale = w.type == WeightType::i8 ? load<float>(panel + k_pad * kPanel, c) : 1.0f;
  for (size_t i = 0; i < static_cast<size_t>(w.k); ++i) {
    if (w.type == WeightType::f32) {
      out[i] = load<float>(panel, i * kPanel + c);
    } else if (w.type == WeightType::f16) {
      out[i] = f16_to_f32(load<uint16_t>(panel, i * kPanel + c));
    } else if (w.type == WeightType::bf16) {
      out[i] = bf16_to_f32(load<uint16_t>(panel, (i / 2 * kPanel + c) * 2 + i % 2));
    } else {
      out[i] = scale * static_cast<float>(panel[quad(i, c)] - 128);
    }
  }
}

}  // namespace legato
