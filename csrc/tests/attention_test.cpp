// Writing the cache and attention on every level of this machine, by one thread and by many: the same bits, no data
// race, nothing outside the arrays touched. Values are checked from Python.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "runtime/kv_pool.h"
#include "tests/levels.h"

namespace legato {
namespace {

constexpr int32_t kRows = 300, kBlock = 32, kBlocks = (kRows + kBlock - 1) / kBlock;

struct Shape {
  int32_t heads, kv_heads, head_dim;
};

struct Model {
  Model(KvType type, Shape shape)
      : shape(shape),
        width(static_cast<size_t>((shape.heads + 2 * shape.kv_heads) * shape.head_dim)),
        q_width(static_cast<size_t>(shape.heads * shape.head_dim)),
        x(kRows * width),
        positions(kRows),
        slots(kRows),
        block_table(kBlocks),
        kv(KvPool({0, 1, shape.kv_heads, shape.head_dim}, type, kBlock, 0).layer(0)) {
    fill(x, 5);
    for (int32_t b = 0; b < kBlocks; ++b) block_table[static_cast<size_t>(b)] = kBlocks - 1 - b;
    for (int32_t r = 0; r < kRows; ++r) {
      const size_t i = static_cast<size_t>(r);
      positions[i] = r;
      slots[i] = int64_t{kBlocks - 1 - r / kBlock} * kBlock + r % kBlock;
    }
  }

  Shape shape;
  size_t width, q_width;
  Guarded<float> x;
  Guarded<int32_t> positions;
  Guarded<int64_t> slots;
  Guarded<int32_t> block_table;
  KvView kv;  // of memory that run() guards
};

// Item `index` of rows cut into runs of `rows` and every kv head; without scratch.
AttentionItem item_at(Model& m, int32_t index, int32_t rows) {
  AttentionItem item{};
  item.row_begin = index / m.shape.kv_heads * rows;
  item.row_end = std::min(kRows, item.row_begin + rows);
  item.kv_head = index % m.shape.kv_heads;
  item.split_end = (item.row_end - 1) / kKvSplit + 1;
  item.block_table = m.block_table.data();
  return item;
}

std::vector<float> run(const KernelTable& table, Model& m, int threads, int32_t rows_per_item) {
  ThreadPool pool(threads);
  Guarded<uint8_t> cache(static_cast<size_t>(m.kv.block_bytes * kBlocks));
  m.kv.base = cache.data();
  Guarded<float> q(kRows * m.q_width), out(kRows * m.q_width);
  const int64_t q_stride = static_cast<int64_t>(m.q_width);
  const HeadsArgs heads{m.x.data(),
                        static_cast<int64_t>(m.width),
                        q.data(),
                        q_stride,
                        m.shape.heads,
                        nullptr,
                        nullptr,
                        0.0f,
                        0,
                        nullptr,
                        m.positions.data(),
                        m.slots.data(),
                        m.kv};
  pool.run(kRows, [&](int64_t row, int) {
    table.heads_to_cache(heads, static_cast<int32_t>(row), static_cast<int32_t>(row) + 1);
  });

  AttentionArgs a{};
  a.q = q.data();
  a.q_stride = a.out_stride = q_stride;
  a.heads = m.shape.heads;
  a.scale = 0.3f;
  a.positions = m.positions.data();
  a.kv = m.kv;
  a.out = out.data();
  const size_t scratch_floats = attention_scratch_bytes(m.kv, m.shape.heads) / sizeof(float);
  Guarded<float> scratch(scratch_floats * static_cast<size_t>(threads));
  const int32_t cuts = (kRows + rows_per_item - 1) / rows_per_item;
  const int32_t last = cuts * m.shape.kv_heads - 1;
  pool.run(int64_t{last} + 1, [&](int64_t index, int thread) {
    AttentionItem item = item_at(m, static_cast<int32_t>(index), rows_per_item);
    const AttentionItem next = item_at(m, std::min(static_cast<int32_t>(index) + threads, last), rows_per_item);
    if (threads > 1) item.next = &next;  // asked for, at most: alone and in a crowd must agree
    item.scratch = scratch.data() + scratch_floats * static_cast<size_t>(thread);
    table.attention(a, item);
  });
  return {out.data(), out.data() + out.size()};
}

}  // namespace
}  // namespace legato

int main() {
  using namespace legato;
  constexpr Shape kShapes[] = {{9, 3, 64}, {2, 1, 34}, {1, 1, 128}};
  for (const KernelTable* table : usable_levels()) {
    for (KvType type : {KvType::f32, KvType::bf16, KvType::i8, KvType::e4m3}) {
      for (const Shape& shape : kShapes) {
        Model model(type, shape);
        const std::vector<float> alone = run(*table, model, 1, 1), crowd = run(*table, model, 3, kAttentionRows);
        for (float value : alone) CHECK(std::isfinite(value));
        CHECK(std::memcmp(alone.data(), crowd.data(), alone.size() * sizeof(float)) == 0);
      }
    }
  }
}
