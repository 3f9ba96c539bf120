#include "kernels/pack.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/pack_convert.h"
#include "kernels/pack_quantize.h"

namespace legato {
namespace {

constexpr int32_t kBlock = 32;  // values of a GGUF block, and of two groups of i4

static_assert(kBlock == 2 * kI4Group);

constexpr uint8_t kNullHead[kI4Head] = {0, 128, 128};  // of two i4 groups whose values are all 0

int32_t round_up(int32_t value, int32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// A column is encoded on its own, in order of k; a panel is then 64 encoded columns, interleaved element by element.
// A chunk is what has a header of its own (a group of a grouped layout, two of i4), or the whole column.
struct Chunks {
  int32_t count;      // chunks in a column
  size_t code_bytes;  // codes of one chunk of one column
  size_t element;     // bytes of one column that lie together
  size_t head_bytes;  // of one column, before the codes of the chunk
  size_t field;       // bytes of the header that lie together
};

Chunks chunks_of(const Weight& w) {
  const size_t k = static_cast<size_t>(w.k_pad);
  const size_t head = static_cast<size_t>(1 + w.has_min) * 2;
  switch (w.type) {
    case WeightType::f32:
      return {1, k * 4, 4, 0, 2};
    case WeightType::f16:
      return {1, k * 2, 2, 0, 2};
    case WeightType::bf16:
      return {1, k * 2, 4, 0, 2};
    case WeightType::i8:
      if (w.group == 0) return {1, k, 4, 0, 2};
      return {w.k_pad / kBlock, kBlock, 4, head, 2};
    case WeightType::q4:
      return {w.k_pad / kBlock, kBlock / 2, 4, head, 2};
    case WeightType::i4:
      return {w.k_pad / kBlock, kBlock / 2, 4, kI4Head, 1};
  }
  return {};
}

bool has_channel_scale(const Weight& w) {
  return w.type == WeightType::i4 || (w.type == WeightType::i8 && w.group == 0);
}

// One encoded column. `values` is room for k_pad f32 values.
struct Column {
  uint8_t* codes;
  uint8_t* heads;  // [chunks][head_bytes]
  float* scale;
  float* values;
};

void encode_pad(const Weight& w, const Column& out) {
  const Chunks chunks = chunks_of(w);
  const uint8_t code = w.type == WeightType::i8   ? 128
                       : w.type == WeightType::q4 ? static_cast<uint8_t>(w.zero * 17)
                                                  : 0;
  std::memset(out.codes, code, chunks.code_bytes * static_cast<size_t>(chunks.count));
  std::fill_n(out.heads, chunks.head_bytes * static_cast<size_t>(chunks.count), uint8_t{0});
  if (w.type == WeightType::i4) {
    for (int32_t i = 0; i < chunks.count; ++i) std::memcpy(out.heads + i * kI4Head, kNullHead, sizeof kNullHead);
  }
  *out.scale = 0.0f;
}

void encode_q8_0(const uint8_t* row, int32_t k, const Column& out) {
  for (int32_t b = 0; b < k / kBlock; ++b, row += 34) {
    std::memcpy(out.heads + 2 * b, row, 2);
    for (int32_t j = 0; j < kBlock; ++j) out.codes[b * kBlock + j] = row[2 + j] ^ 0x80;
  }
}

// The nibbles of a GGUF block are already in this layout's order.
void encode_q4_blocks(const uint8_t* row, int32_t k, bool has_min, const Column& out) {
  const int32_t header = has_min ? 4 : 2;
  for (int32_t b = 0; b < k / kBlock; ++b, row += header + kBlock / 2) {
    std::memcpy(out.heads + b * header, row, static_cast<size_t>(header));
    std::memcpy(out.codes + b * (kBlock / 2), row + header, kBlock / 2);
  }
}

// bf16 by runs of a fixed length, in an array of their own: the compiler knows that nothing overlaps, and uses vectors.
void encode_bf16(const float* values, int32_t k, uint8_t* codes) {
  constexpr int32_t kRun = 32;
  uint16_t run[kRun];
  int32_t i = 0;
  for (; i + kRun <= k; i += kRun) {
    for (int32_t j = 0; j < kRun; ++j) run[j] = f32_to_bf16(values[i + j]);
    std::memcpy(codes + 2 * i, run, sizeof run);
  }
  for (; i < k; ++i) {
    const uint16_t value = f32_to_bf16(values[i]);
    std::memcpy(codes + 2 * i, &value, sizeof value);
  }
}

// Targets that any source reaches through f32.
const char* encode_values(const SourceRow& row, const Weight& w, const Column& out) {
  dequantize_row(row.type, row.data, w.k, out.values);
  switch (w.type) {
    case WeightType::f32:
      std::memcpy(out.codes, out.values, static_cast<size_t>(w.k) * 4);
      return nullptr;
    case WeightType::bf16:
      encode_bf16(out.values, w.k, out.codes);
      return nullptr;
    case WeightType::i8:
      if (w.group != 0) return "int8 groups are made from Q8_0 only";
      return quantize_channel_i8(out.values, w.k, out.codes, out.scale);
    case WeightType::i4:
      return quantize_channel_i4(out.values, w.k, out.codes, out.heads, out.scale);
    case WeightType::q4:
      return w.has_min ? "4-bit groups with a minimum are made from Q4_1 only"
                       : "4-bit groups without a minimum are made from Q4_0 only";
    case WeightType::f16:
      break;
  }
  return "f16 weights are made from F16 only";
}

const char* encode_column(const SourceRow& row, const Weight& w, const Column& out) {
  encode_pad(w, out);
  if (row.data == nullptr) return nullptr;
  const bool own_q4_0 = row.type == TableType::q4_0 && w.zero == 8 && !w.has_min;
  const bool own_q4_1 = row.type == TableType::q4_1 && w.zero == 0 && w.has_min;
  if ((row.type == TableType::f16 && w.type == WeightType::f16) ||
      (row.type == TableType::bf16 && w.type == WeightType::bf16)) {
    std::memcpy(out.codes, row.data, static_cast<size_t>(w.k) * 2);
  } else if (row.type == TableType::q8_0 && w.type == WeightType::i8 && w.group == kBlock) {
    encode_q8_0(row.data, w.k, out);
  } else if (w.type == WeightType::q4 && (own_q4_0 || own_q4_1)) {
    encode_q4_blocks(row.data, w.k, own_q4_1, out);
  } else {
    return encode_values(row, w, out);
  }
  return nullptr;
}

// Rows and columns of a 4 x 4 block of words change places. Inlined into the loops around it, GCC 12 does not see that
// this is eight unpacks of registers.
[[gnu::noinline]] void transpose(const uint8_t* from, size_t from_stride, uint8_t* to, size_t to_stride) {
  constexpr size_t kSide = 4;
  uint32_t block[kSide][kSide], turned[kSide][kSide];
  for (size_t i = 0; i < kSide; ++i) std::memcpy(block[i], from + i * from_stride, sizeof block[i]);
  for (size_t i = 0; i < kSide; ++i) {
    for (size_t j = 0; j < kSide; ++j) turned[i][j] = block[j][i];
  }
  for (size_t i = 0; i < kSide; ++i) std::memcpy(to + i * to_stride, turned[i], sizeof turned[i]);
}

// out[i][c] = columns[c][i] for 64 columns that lie `stride` bytes apart, elements of 4 bytes, `count` a multiple of 4.
// A tile of 16 elements at a time: its lines stay in L1 on both sides.
void interleave_words(const uint8_t* columns, size_t stride, size_t count, uint8_t* out) {
  constexpr size_t kTile = 16, kSide = 4, kBytes = 4;
  for (size_t begin = 0; begin < count; begin += kTile) {
    const size_t end = std::min(begin + kTile, count);
    for (size_t c = 0; c < kPanel; c += kSide) {
      for (size_t i = begin; i < end; i += kSide)
        transpose(columns + c * stride + i * kBytes, stride, out + (i * kPanel + c) * kBytes, kPanel * kBytes);
    }
  }
}

// The same for elements of 2 bytes, one by one.
void interleave_halves(const uint8_t* columns, size_t stride, size_t count, uint8_t* out) {
  constexpr size_t kTile = 16, kBytes = 2;
  for (size_t begin = 0; begin < count; begin += kTile) {
    const size_t end = std::min(begin + kTile, count);
    for (size_t c = 0; c < kPanel; ++c) {
      for (size_t i = begin; i < end; ++i)
        std::memcpy(out + (i * kPanel + c) * kBytes, columns + c * stride + i * kBytes, kBytes);
    }
  }
}

// 64 encoded columns.
class PanelBuffer {
 public:
  explicit PanelBuffer(const Weight& w)
      : chunks_(chunks_of(w)),
        column_bytes_(chunks_.code_bytes * static_cast<size_t>(chunks_.count)),
        codes_(column_bytes_ * kPanel),
        heads_(chunks_.head_bytes * static_cast<size_t>(chunks_.count) * kPanel),
        values_(static_cast<size_t>(w.k_pad)) {}

  Column column(size_t c) {
    return {codes_.data() + c * column_bytes_, heads_.data() + head_at(c, 0), scales_ + c, values_.data()};
  }

  void write(const Weight& w, uint8_t* out) const {
    for (int32_t g = 0; g < chunks_.count; ++g) {
      const size_t chunk = static_cast<size_t>(g);
      write_header(chunk, out);
      out += chunks_.head_bytes * kPanel;
      const uint8_t* codes = codes_.data() + chunk * chunks_.code_bytes;
      if (chunks_.element == 2) {
        interleave_halves(codes, column_bytes_, chunks_.code_bytes / 2, out);
      } else {
        interleave_words(codes, column_bytes_, chunks_.code_bytes / 4, out);
      }
      out += chunks_.code_bytes * kPanel;
    }
    if (has_channel_scale(w)) std::memcpy(out, scales_, sizeof scales_);
  }

 private:
  size_t head_at(size_t column, size_t chunk) const {
    return (column * static_cast<size_t>(chunks_.count) + chunk) * chunks_.head_bytes;
  }

  void write_header(size_t chunk, uint8_t* out) const {
    const size_t field = chunks_.field;
    for (size_t at = 0; at < chunks_.head_bytes; at += field) {
      for (size_t c = 0; c < kPanel; ++c, out += field) std::memcpy(out, heads_.data() + head_at(c, chunk) + at, field);
    }
  }

  Chunks chunks_;
  size_t column_bytes_;
  std::vector<uint8_t> codes_;  // [64][column_bytes]
  std::vector<uint8_t> heads_;  // [64][chunks][head_bytes]
  float scales_[kPanel] = {};
  std::vector<float> values_;
};

bool is_supported(WeightType type, int32_t group, int32_t zero, int32_t has_min) {
  if (type == WeightType::q4) return group == kBlock && zero >= 0 && zero <= 15 && (has_min == 0 || has_min == 1);
  if (type == WeightType::i4) return group == kI4Group && zero == 0 && has_min == 0;
  return (group == 0 || (type == WeightType::i8 && group == kBlock)) && zero == 0 && has_min == 0;
}

}  // namespace

size_t describe_weight(WeightType type, int32_t n, int32_t k, int32_t group, int32_t zero, int32_t has_min,
                       Weight* out) {
  if (n <= 0 || k <= 0 || n > INT32_MAX - kPanel || k > INT32_MAX - kPanel) return 0;
  const int32_t n_pad = round_up(n, kPanel);
  const int32_t k_pad = round_up(k, 64);
  if (!is_supported(type, group, zero, has_min)) return 0;
  *out = {type, n, k, n_pad, k_pad, group, zero, has_min, 0, nullptr};
  const Chunks chunks = chunks_of(*out);
  out->panel_bytes = (chunks.head_bytes + chunks.code_bytes) * kPanel * static_cast<size_t>(chunks.count);
  if (has_channel_scale(*out)) out->panel_bytes += kPanel * sizeof(float);
  return out->panel_bytes * static_cast<size_t>(n_pad / kPanel);
}

int32_t layout_id(const Weight& w) {
  switch (w.type) {
    case WeightType::f32:
      return 1;
    case WeightType::f16:
      return 2;
    case WeightType::bf16:
      return 3;
    case WeightType::i8:
      return w.group == 0 ? 4 : 5;
    case WeightType::q4:
      return 6;
    case WeightType::i4:
      return 7;
  }
  return 0;
}

const char* pack_weight(const PackArgs& args, const Weight& w, int32_t panel_begin, int32_t panel_end, uint8_t* out) {
  if (args.n != w.n || args.k != w.k) return "the source and the packed weight differ in shape";
  PanelBuffer buffer(w);
  for (int32_t panel = panel_begin; panel < panel_end; ++panel) {
    for (int32_t c = 0; c < kPanel; ++c) {
      const int32_t column = panel * kPanel + c;
      const SourceRow row = column < w.n ? args.rows[column] : SourceRow{TableType::f32, nullptr};
      const char* error = encode_column(row, w, buffer.column(static_cast<size_t>(c)));
      if (error != nullptr) return error;
    }
    buffer.write(w, out + static_cast<size_t>(panel) * w.panel_bytes);
  }
  return nullptr;
}

}  // namespace legato
