// The KV cache and attention on numpy arrays, cut into items as the caller likes: values must not depend on the cut.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/float_mode.h"
#include "bindings/act_buffer.h"
#include "bindings/arrays.h"
#include "bindings/names.h"
#include "runtime/kv_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace legato {
namespace {

using Ints = Array<const int32_t, 1>;

// A pool of one layer.
class KvCache {
 public:
  KvCache(const std::string& dtype, int32_t blocks, int32_t block_size, int32_t kv_heads, int32_t head_dim)
      : pool_(make_pool(dtype, blocks, block_size, kv_heads, head_dim)), blocks_(blocks) {}

  KvView view() const { return pool_.layer(0); }
  int32_t blocks() const { return blocks_; }

 private:
  static KvPool make_pool(const std::string& dtype, int32_t blocks, int32_t block_size, int32_t kv_heads,
                          int32_t head_dim) {
    require(block_size > 0 && block_size % kKvTile == 0, "block_size must be a multiple of 16");
    require(head_dim > 0 && head_dim % 2 == 0 && head_dim <= kMaxHeadDim, "head_dim must be even and at most 512");
    return KvPool({0, 1, kv_heads, head_dim}, kv_type(dtype), block_size, blocks);
  }

  KvPool pool_;
  int32_t blocks_;
};

nb::object cache_bytes(nb::handle self) {
  const KvCache& cache = nb::cast<const KvCache&>(self);
  const KvView view = cache.view();
  const size_t shape[] = {static_cast<size_t>(cache.blocks()), static_cast<size_t>(view.block_bytes)};
  return nb::cast(nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>>(view.base, 2, shape, self));
}

void heads_to_cache(const std::string& isa, const KvCache& cache, const Matrix& x, int32_t heads,
                    const OptionalVector& q_norm, const OptionalVector& k_norm, float eps,
                    const std::optional<Matrix>& cos_sin, const Ints& positions,
                    const Array<const int64_t, 1>& kv_slots, const OutMatrix& q) {
  HeadsArgs a{};
  a.kv = cache.view();
  a.x = x.data();
  a.x_stride = static_cast<int64_t>(x.shape(1));
  a.q = q.data();
  a.q_stride = static_cast<int64_t>(q.shape(1));
  a.heads = heads;
  require(a.x_stride == int64_t{heads + 2 * a.kv.kv_heads} * a.kv.head_dim, "x has the wrong width");
  require(a.q_stride == int64_t{heads} * a.kv.head_dim && q.shape(0) == x.shape(0), "q has the wrong shape");
  require(positions.shape(0) == x.shape(0) && kv_slots.shape(0) == x.shape(0), "one position and slot per row");
  a.q_norm = values_or_null(q_norm, a.kv.head_dim, "q_norm has the wrong length");
  a.k_norm = values_or_null(k_norm, a.kv.head_dim, "k_norm has the wrong length");
  a.eps = eps;
  if (cos_sin) {
    a.rope_dim = static_cast<int32_t>(cos_sin->shape(1));
    a.cos_sin = cos_sin->data();
    require(a.rope_dim <= a.kv.head_dim, "rope_dim is larger than head_dim");
  }
  a.positions = positions.data();
  a.kv_slots = kv_slots.data();
  const int64_t slots = int64_t{cache.blocks()} * a.kv.block_size;
  require(std::all_of(a.kv_slots, a.kv_slots + kv_slots.shape(0), [=](int64_t s) { return s >= 0 && s < slots; }),
          "a slot is out of range");
  const FlushDenormals mode;
  kernels(isa).heads_to_cache(a, 0, static_cast<int32_t>(x.shape(0)));
}

struct Cut {
  int32_t rows;    // of an item
  int32_t splits;  // of an item; 0: all of them, without partial results
};

// All splits of rows [begin, end) of one kv head, through partial results that are merged afterwards.
void attend_in_parts(const KernelTable& table, const AttentionArgs& a, AttentionItem item, int32_t splits_per_item) {
  const int32_t splits = item.split_end, per_row = a.heads / a.kv.kv_heads;
  const int32_t rows = item.row_end - item.row_begin, queries = rows * per_row;
  const int64_t floats = attention_partial_floats(a.kv);
  AlignedBuffer memory(static_cast<size_t>(floats * queries * splits) * sizeof(float));
  for (int32_t s = 0; s < splits; s += splits_per_item) {
    item.split_begin = s;
    item.split_end = std::min(splits, s + splits_per_item);
    item.partial = memory.as<float>() + floats * queries * s;
    table.attention(a, item);
  }
  for (int32_t i = 0; i < queries; ++i) {
    std::vector<const float*> partials;
    for (int32_t s = 0; s < splits; ++s) partials.push_back(memory.as<float>() + floats * (queries * s + i));
    table.attention_merge(a, item.row_begin + i / per_row, item.kv_head * per_row + i % per_row, partials.data(),
                          splits);
  }
}

void attend(const KernelTable& table, const AttentionArgs& a, int32_t rows, const int32_t* block_table, Cut cut) {
  AlignedBuffer scratch(attention_scratch_bytes(a.kv, a.heads));
  for (int32_t begin = 0; begin < rows; begin += cut.rows) {
    AttentionItem item{};
    item.row_begin = begin;
    item.row_end = std::min(rows, begin + cut.rows);
    item.split_end = *std::max_element(a.positions + begin, a.positions + item.row_end) / kKvSplit + 1;
    item.block_table = block_table;
    item.scratch = scratch.as<float>();
    for (item.kv_head = 0; item.kv_head < a.kv.kv_heads; ++item.kv_head) {
      if (cut.splits == 0) {
        table.attention(a, item);
      } else {
        attend_in_parts(table, a, item, cut.splits);
      }
    }
  }
}

void attention(const std::string& isa, const KvCache& cache, const Matrix& q, int32_t heads, float scale,
               int32_t window, const Ints& positions, const Ints& block_table, const ActBuffer* acts,
               const std::optional<OutMatrix>& out, int32_t rows_per_item, int32_t splits_per_item) {
  AttentionArgs a{};
  a.kv = cache.view();
  a.q = q.data();
  a.q_stride = static_cast<int64_t>(q.shape(1));
  a.heads = heads;
  a.scale = scale;
  a.window = window;
  a.positions = positions.data();
  require(heads % a.kv.kv_heads == 0 && a.q_stride == int64_t{heads} * a.kv.head_dim, "q has the wrong width");
  require(positions.shape(0) == q.shape(0), "one position per row");
  require(rows_per_item >= 1 && rows_per_item <= kAttentionRows, "an item has 1 to 16 rows");
  require((acts != nullptr) != out.has_value(), "give one of acts and out");
  if (out) {
    require(out->shape(0) == q.shape(0) && out->shape(1) == q.shape(1), "out has the wrong shape");
    a.out = out->data();
    a.out_stride = a.q_stride;
  } else {
    a.acts = acts->view(kernels(isa));
    require(acts->rows() == static_cast<int32_t>(q.shape(0)) && a.acts.k == a.q_stride, "acts has the wrong shape");
    require(a.acts.type != ActType::s8 || a.kv.head_dim % a.acts.group == 0, "a head must hold whole groups");
  }
  const int32_t rows = static_cast<int32_t>(q.shape(0));
  for (int32_t r = 0; r < rows; ++r) {
    require(positions.data()[r] / a.kv.block_size < static_cast<int32_t>(block_table.shape(0)),
            "a position is behind the block table");
  }
  const KernelTable& table = kernels(isa);
  nb::gil_scoped_release release;
  const FlushDenormals mode;
  attend(table, a, rows, block_table.data(), {rows_per_item, splits_per_item});
}

}  // namespace

void bind_ops_attention(nb::module_& m) {
  nb::class_<KvCache>(m, "KvCache", "A pool of blocks for one layer; the layout is drawn in kernels.h.")
      .def(nb::init<const std::string&, int32_t, int32_t, int32_t, int32_t>(), "dtype"_a, "blocks"_a, "block_size"_a,
           "kv_heads"_a, "head_dim"_a)
      .def_prop_ro("data", &cache_bytes, "uint8 [blocks, bytes of a block]");
  m.def("heads_to_cache", &heads_to_cache, "isa"_a, "cache"_a, "x"_a, "heads"_a, "q_norm"_a, "k_norm"_a, "eps"_a,
        "cos_sin"_a, "positions"_a, "kv_slots"_a, "q"_a,
        "x [rows, (heads + 2 kv_heads) * head_dim]: norm, rotate; K and V to the cache, q to `q`.");
  m.def("attention", &attention, "isa"_a, "cache"_a, "q"_a, "heads"_a, "scale"_a, "window"_a, "positions"_a,
        "block_table"_a, "acts"_a = nb::none(), "out"_a = nb::none(), "rows_per_item"_a = kAttentionRows,
        "splits_per_item"_a = 0,
        "Attention of rows of one sequence over its cached positions; window 0: all. splits_per_item 0: one item "
        "covers all splits of its rows.");
}

}  // namespace legato
