// Row kernels and sampler on every level of this machine: nothing outside their arrays is touched, nothing inside is
// left out, and no behaviour is undefined. Values are checked from Python.
#include <cmath>
#include <cstring>
#include <vector>

#include "base/float_mode.h"
#include "kernels/kernels.h"
#include "kernels/pack.h"
#include "tests/levels.h"

namespace legato {
namespace {

constexpr int32_t kWidths[] = {1, 2, 15, 16, 17, 31, 32, 63, 64, 65, 130};
constexpr int32_t kRows = 3;

// Activations of one format in guarded memory.
struct GuardedActs {
  GuardedActs(const KernelTable& table, ActType type, int32_t group, int32_t k)
      : pad(static_cast<size_t>((k + 63) / 64 * 64)),
        bytes(value_bytes(table, type)),
        data(kRows * pad * bytes),
        scales(group == 0 ? 0 : kRows * pad / static_cast<size_t>(group)),
        sums(scales.size()),
        acts{type, k, static_cast<int32_t>(pad), group, data.data(), scales.data(), sums.data()} {}

  void check_written() {
    for (size_t i = 0; i < scales.size(); ++i) CHECK(std::isfinite(scales[i]) && std::abs(sums[i]) <= 64 * 127);
    if (acts.type == ActType::s8) return;
    for (size_t i = 0; i < kRows * pad; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, data.data() + i * bytes, bytes);
      CHECK(bits != (bytes == 4 ? 0xffffffffu : 0xffffu));
    }
  }

  size_t pad, bytes;
  Guarded<uint8_t> data;
  Guarded<float> scales;
  Guarded<int32_t> sums;
  Acts acts;
};

struct Format {
  ActType type;
  int32_t group;
};
constexpr Format kFormats[] = {{ActType::f32, 0}, {ActType::bf16, 0}, {ActType::s8, 32}, {ActType::s8, 64}};

void norm_and_quantize(const KernelTable& table, int32_t width) {
  Guarded<float> x(static_cast<size_t>(kRows * width)), weight(static_cast<size_t>(width)), bias(weight.size());
  fill(x, 1);
  fill(weight, 2);
  fill(bias, 3);
  for (const Format& format : kFormats) {
    for (int32_t layer : {0, 1}) {
      GuardedActs y(table, format.type, format.group, width);
      table.norm(
          {x.data(), width, width, layer, 1e-5f, weight.data(), layer != 0 ? bias.data() : nullptr, nullptr, 0, y.acts},
          0, kRows);
      y.check_written();
    }
    GuardedActs y(table, format.type, format.group, width);
    table.quantize({x.data(), width, y.acts}, 0, kRows);
    y.check_written();
  }
  Guarded<float> out(x.size());
  table.norm({x.data(), width, width, 0, 1e-5f, weight.data(), nullptr, out.data(), width, {}}, 0, kRows);
  for (size_t i = 0; i < out.size(); ++i) CHECK(std::isfinite(out[i]));
  Guarded<uint8_t> faults(kRows);
  x[static_cast<size_t>(width)] = NAN;
  table.find_faults(x.data(), width, width, kRows, faults.data());
  CHECK(faults[0] == 0 && faults[1] == 1 && faults[2] == 0);
}

void embed(const KernelTable& table) {
  constexpr TableType kTypes[] = {TableType::f32,  TableType::f16,  TableType::bf16,
                                  TableType::q8_0, TableType::q4_0, TableType::q4_1};
  for (TableType type : kTypes) {
    for (int32_t width : {1, 32, 33, 96}) {
      const size_t row_bytes = source_row_bytes(type, width);
      if (row_bytes == 0) continue;
      Guarded<uint8_t> rows(2 * row_bytes);
      std::memset(rows.data(), 0x11, rows.size());
      Guarded<int32_t> tokens(kRows);
      for (size_t i = 0; i < kRows; ++i) tokens[i] = i % 2;
      Guarded<float> out(static_cast<size_t>(kRows * width));
      table.embed({type, rows.data(), static_cast<int64_t>(row_bytes), width, 0.5f, tokens.data(), out.data(), width},
                  0, kRows);
      for (size_t i = 0; i < out.size(); ++i) CHECK(std::isfinite(out[i]));
    }
  }
}

void sample(const KernelTable& table, int32_t vocab) {
  const size_t size = static_cast<size_t>(vocab);
  Guarded<float> logits(size), values(size);
  Guarded<int32_t> ids(size);
  Guarded<uint8_t> mask((size + 7) / 8);  // all allowed
  fill(logits, 7);
  for (float temperature : {0.0f, 0.8f}) {
    for (int32_t top_k : {0, 1, 5, vocab}) {
      for (float top_p : {1.0f, 0.7f}) {
        for (float uniform : {0.0f, 0.5f, 0.99999994f}) {
          SampleArgs a{logits.data(), vocab,   mask.data(), temperature,   top_k, top_p,
                       0.01f,         uniform, ids.data(),  values.data(), -1};
          table.sample(a);
          CHECK(a.token >= 0 && a.token < vocab);
        }
      }
    }
  }
  for (int32_t count : {0, 1, vocab}) {
    Guarded<int32_t> top_ids(static_cast<size_t>(count));
    Guarded<float> top(static_cast<size_t>(count));
    LogprobArgs a{logits.data(), vocab, vocab - 1, count, NAN, top_ids.data(), top.data()};
    table.logprobs(a);
    CHECK(a.logprob <= 0.0f);
    for (size_t i = 1; i < top.size(); ++i) CHECK(top[i - 1] >= top[i]);
  }
}

}  // namespace
}  // namespace legato

int main() {
  using namespace legato;
  const FlushDenormals mode;
  for (const KernelTable* table : usable_levels()) {
    embed(*table);
    for (int32_t width : kWidths) norm_and_quantize(*table, width);
    for (int32_t vocab : {1, 7, 8, 9, 64, 65, 257, 1000}) sample(*table, vocab);
  }
}
