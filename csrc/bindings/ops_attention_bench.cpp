// Times attention over the paged cache, cut into items as in a step of the runtime.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/thread_pool.h"
#include "bindings/arrays.h"
#include "bindings/names.h"
#include "bindings/timing.h"
#include "runtime/kv_pool.h"
#include "runtime/split.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace legato {
namespace {

constexpr int32_t kBlockSize = 16;

struct Shape {
  int32_t sequences, context, rows;  // the last `rows` positions of each sequence's context are computed
  int32_t heads, kv_heads, head_dim;

  int32_t blocks_each() const { return (context + kBlockSize - 1) / kBlockSize; }
};

// What attention reads of a step. Blocks lie in turn, as those of sequences that grew together.
struct Columns {
  std::vector<int32_t> positions, row_offsets{0}, block_table;

  explicit Columns(const Shape& shape) {
    for (int32_t s = 0; s < shape.sequences; ++s) {
      for (int32_t p = shape.context - shape.rows; p < shape.context; ++p) positions.push_back(p);
      row_offsets.push_back(static_cast<int32_t>(positions.size()));
      for (int32_t b = 0; b < shape.blocks_each(); ++b) block_table.push_back(b * shape.sequences + s);
    }
  }
};

// Each pass goes through all layers, one after another.
double time_layers(const KernelTable& table, const KvPool& pool, int32_t layers, const Shape& shape, int threads,
                   double min_seconds) {
  const Columns columns(shape);
  StepInput step;
  step.positions = columns.positions;
  step.row_offsets = columns.row_offsets;
  const AttentionWork work = split_attention(step, {shape.kv_heads, shape.heads / shape.kv_heads, 0, threads, 0});
  const int64_t width = int64_t{shape.heads} * shape.head_dim;
  const std::vector<float> q(columns.positions.size() * static_cast<size_t>(width), 0.01f);
  std::vector<float> out(q.size());
  std::vector<AlignedBuffer> scratch;
  for (int t = 0; t < threads; ++t) scratch.emplace_back(attention_scratch_bytes(pool.layer(0), shape.heads));

  AttentionArgs args{};
  args.q = q.data();
  args.heads = shape.heads;
  args.scale = 0.125f;
  args.positions = columns.positions.data();
  args.out = out.data();
  args.q_stride = args.out_stride = width;
  ThreadPool threads_pool(threads);
  const auto run_piece = [&](int64_t index, int thread) {
    const auto item_at = [&](const AttentionPiece& piece) {
      return item_of(piece, columns.block_table.data() + int64_t{piece.sequence} * shape.blocks_each(),
                     scratch[static_cast<size_t>(thread)].as<float>());
    };
    AttentionItem item = item_at(work.pieces[static_cast<size_t>(index)]), next;
    if (const AttentionPiece* after = work.after(index, threads)) {
      next = item_at(*after);
      item.next = &next;
    }
    table.attention(args, item);
  };
  int32_t layer = 0;
  return best_seconds(min_seconds, [&] {
    args.kv = pool.layer(layer);
    layer = (layer + 1) % layers;
    threads_pool.run(static_cast<int64_t>(work.pieces.size()), run_piece);
  });
}

nb::tuple attention_bench(const std::string& kv_dtype, int32_t sequences, int32_t context, int32_t rows, int32_t heads,
                          int32_t kv_heads, int32_t head_dim, int threads, const std::string& isa, int64_t bytes,
                          double min_seconds) {
  require(sequences >= 1 && rows >= 1 && rows <= context, "sequences and rows must be at least 1, rows in the context");
  require(kv_heads >= 1 && heads >= 1 && heads % kv_heads == 0, "heads must be a multiple of kv_heads");
  require(head_dim > 0 && head_dim % 2 == 0 && head_dim <= kMaxHeadDim, "head_dim must be even and at most 512");
  require(threads >= 1, "threads must be at least 1");
  const Shape shape = {sequences, context, rows, heads, kv_heads, head_dim};
  const KvType type = kv_type(kv_dtype);
  const int32_t blocks = sequences * shape.blocks_each();
  const int64_t layer_bytes = KvPool::bytes_per_block({0, 1, kv_heads, head_dim}, type, kBlockSize) * blocks;
  const auto layers = static_cast<int32_t>(bytes / layer_bytes + 1);
  const KvPool pool({0, layers, kv_heads, head_dim}, type, kBlockSize, blocks);
  std::memset(pool.layer(0).base, 0x3c, static_cast<size_t>(layer_bytes * layers));  // small numbers in each dtype
  const KernelTable& table = kernels(isa);
  double seconds;
  {
    const nb::gil_scoped_release release;
    seconds = time_layers(table, pool, layers, shape, threads, min_seconds);
  }
  return nb::make_tuple(seconds, layer_bytes);
}

}  // namespace

void bind_ops_attention_bench(nb::module_& m) {
  m.def("attention_bench", &attention_bench, "kv_dtype"_a, "sequences"_a, "context"_a, "rows"_a, "heads"_a,
        "kv_heads"_a, "head_dim"_a, "threads"_a = 1, "isa"_a = "", "bytes"_a = int64_t{1} << 20, "min_seconds"_a = 0.2,
        "(best seconds, bytes of K and V) of one layer's attention: the last `rows` positions of each sequence over "
        "its cached context, in blocks of 16, through layers of more than `bytes` together.");
}

}  // namespace legato
