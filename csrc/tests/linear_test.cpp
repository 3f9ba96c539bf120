// Packing and matrix products on buffers of exactly the stated sizes: for the sanitizers. Values are checked too, but
// what they should be in detail is the Python tests' business.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/aligned.h"
#include "kernels/pack.h"
#include "tests/levels.h"

using namespace legato;

namespace {

struct Case {
  WeightType type;
  TableType source;
  int32_t group;
  int32_t zero;
  int32_t has_min;
  ActType acts;
  int32_t act_group;
};

constexpr Case kCases[] = {
    {WeightType::f32, TableType::f32, 0, 0, 0, ActType::f32, 0},
    {WeightType::f16, TableType::f16, 0, 0, 0, ActType::f32, 0},
    {WeightType::bf16, TableType::bf16, 0, 0, 0, ActType::bf16, 0},
    {WeightType::i8, TableType::f32, 0, 0, 0, ActType::s8, 64},
    {WeightType::i8, TableType::q8_0, 32, 0, 0, ActType::s8, 32},
    {WeightType::q4, TableType::q4_0, 32, 8, 0, ActType::s8, 32},
    {WeightType::q4, TableType::q4_1, 32, 0, 1, ActType::s8, 32},
    {WeightType::i4, TableType::f32, 16, 0, 0, ActType::s8, 64},
    {WeightType::i4, TableType::q8_0, 16, 0, 0, ActType::s8, 32},
};

constexpr int32_t kRows = 20, kK = 96;  // enough rows that weights are expanded

// Every 16-bit number is 1.0 in f16 (or 0.0078 in bf16) and every block a mixture of small codes.
std::vector<uint8_t> source_rows(TableType type, int32_t n) {
  std::vector<uint8_t> bytes(source_row_bytes(type, kK) * static_cast<size_t>(n));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = i % 2 == 0 ? 0x00 : 0x3c;
  return bytes;
}

struct Rows {
  AlignedBuffer data, scales, sums;
  Acts acts = {};
  Rows(const KernelTable& kernels, ActType type, int32_t group, int32_t k, int32_t fill) {
    const int32_t k_pad = (k + 63) / 64 * 64;
    const size_t groups = type == ActType::s8 ? static_cast<size_t>(kRows * (k_pad / group)) : 0;
    data = AlignedBuffer(static_cast<size_t>(kRows * k_pad) * value_bytes(kernels, type));
    scales = AlignedBuffer(groups * 4);
    sums = AlignedBuffer(groups * 4);
    acts = {type, k, k_pad, group, data.data(), scales.as<float>(), sums.as<int32_t>()};
    if (type != ActType::s8) return;
    for (int32_t r = 0; r < kRows; ++r) std::memset(data.as<int8_t>() + r * k_pad, fill, static_cast<size_t>(k));
    for (size_t g = 0; g < groups; ++g) {
      acts.scales[g] = 1.0f;
      acts.sums[g] = 0;
      for (int32_t i = 0; i < group; ++i) acts.sums[g] += data.as<int8_t>()[static_cast<int32_t>(g) * group + i];
    }
  }
};

void check_products(const KernelTable& kernels, const Case& c, int32_t n, EpilogueKind kind, bool quantized) {
  Weight w;
  const size_t bytes = describe_weight(c.type, n, kK, c.group, c.zero, c.has_min, &w);
  CHECK(bytes > 0);
  AlignedBuffer packed(bytes);
  const std::vector<uint8_t> rows = source_rows(c.source, n);
  std::vector<SourceRow> columns;
  for (int32_t i = 0; i < n; ++i)
    columns.push_back({c.source, rows.data() + static_cast<size_t>(i) * source_row_bytes(c.source, kK)});
  CHECK(pack_weight({columns.data(), n, kK}, w, 0, w.n_pad / kPanel, packed.as<uint8_t>()) == nullptr);
  w.panels = packed.as<uint8_t>();

  const Rows x(kernels, c.acts, c.act_group, kK, 3);
  CHECK(linear_accepts(x.acts, w));
  const int32_t panels = kind == EpilogueKind::glu ? w.n_pad / kPanel / 2 : w.n_pad / kPanel;
  const int32_t width = kind == EpilogueKind::glu ? panels * kPanel : n;
  const std::vector<float> bias(static_cast<size_t>(n), 0.5f);
  std::vector<float> out(static_cast<size_t>(kRows * width), 1.0f);
  const Rows quantized_out(kernels, ActType::s8, 64, width, 1);
  Epilogue e = {kind, Activation::none, 1.0f, bias.data(), quantized ? nullptr : out.data(), width, quantized_out.acts};
  AlignedBuffer scratch(kLinearScratchBytes);
  kernels.linear({x.acts, w, e}, 0, kRows, 0, panels, nullptr, scratch.data());

  std::vector<float> column(kK);
  unpack_column(w, 0, column.data());
  double gate = 0.5;
  if (c.acts == ActType::s8) {
    for (const float value : column) gate += 3.0 * static_cast<double>(value);
  }
  const double expected = kind == EpilogueKind::add ? 1.0 + gate : kind == EpilogueKind::glu ? gate * gate : gate;
  const double got = quantized ? quantized_out.acts.scales[0] * quantized_out.data.as<int8_t>()[0] : out[0];
  CHECK(std::fabs(got - expected) <= (quantized ? 0.01 : 1e-5) * std::fabs(expected));
}

}  // namespace

int main() {
  for (const KernelTable* kernels : usable_levels()) {
    for (const Case& c : kCases) {
      for (const bool quantized : {false, true}) {
        check_products(*kernels, c, 65, EpilogueKind::store, quantized);
        check_products(*kernels, c, 128, EpilogueKind::glu, quantized);
      }
      check_products(*kernels, c, 65, EpilogueKind::add, false);
    }
  }
  return 0;
}
