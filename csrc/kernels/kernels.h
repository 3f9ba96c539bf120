// The seam between kernels and runtime: raw pointers and sizes in, nothing else.
//
// Every function is compiled once per ISA level from the same source and reached through one KernelTable, bound once at
// load. Kernels do not allocate, do not know the runtime and keep no state. A work item is given by index ranges, so
// that the runtime can hand items to any thread: values never depend on which thread, or how many rows share a call.
//
// Invariant (batch invariance): each output element is accumulated over K in one fixed order, whatever the row range.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"

namespace legato {

constexpr int32_t kPanel = 64;        // output columns of one packed weight panel
constexpr int32_t kTileRows = 6;      // rows that `linear` computes at once; ranges of a multiple of it waste nothing
constexpr int32_t kKvTile = 16;       // KV slots of one tile; block sizes are multiples of it
constexpr int32_t kMaxHeadDim = 512;  // largest head_dim
constexpr int32_t kKvSplit = 256;     // attention partials cover absolute positions [256 s, 256 s + 256)

// -------------------------------------------------------------------------------------------- activations and weights

enum class ActType : int32_t { f32 = 0, bf16 = 1, s8 = 2 };

// Rows of activations. k_pad is k rounded up to a multiple of 64; the pad holds zeros.
// bf16: two bytes each where a level multiplies pairs of them, else each as the f32 that it stands for.
// s8: value = data * scales[row][group]; sums[row][group] is the exact integer sum of the group's s8 values.
struct Acts {
  ActType type;
  int32_t k;
  int32_t k_pad;
  int32_t group;  // s8 only: 32 or 64
  void* data;     // [rows][k_pad]
  float* scales;  // s8 only: [rows][k_pad / group]
  int32_t* sums;  // s8 only: [rows][k_pad / group]
};

constexpr int32_t kI4Group = 16;  // values of one column that share a step and an offset
constexpr int32_t kI4Head = 3;    // bytes of two such groups beside their codes: both steps, and each offset

enum class WeightType : int32_t { f32 = 0, f16 = 1, bf16 = 2, i8 = 3, q4 = 4, i4 = 5 };

// A packed matrix of n rows and k columns (y = x W^T), in panels of 64 output columns; layouts in pack.h.
// i8, group 0: w = channel_scale * q. i8 / q4, group > 0: w = d * (q - zero) + m, d and m f16 inside the panel.
// i4: w = channel_scale * (step * q + offset - 128), whole step and offset of each group inside the panel.
struct Weight {
  WeightType type;
  int32_t n;
  int32_t k;
  int32_t n_pad;  // multiple of 64
  int32_t k_pad;  // multiple of 64
  int32_t group;  // 0: one scale per output column
  int32_t zero;
  int32_t has_min;     // 0 or 1
  size_t panel_bytes;  // multiple of 64; panel p begins at panels + p * panel_bytes
  const uint8_t* panels;
};

enum class Activation : int32_t { none = 0, silu = 1, gelu = 2, gelu_tanh = 3, relu = 4 };
enum class EpilogueKind : int32_t { store = 0, add = 1, glu = 2 };

// store: act(y + bias), to `out` (f32) if set, else to `acts` (s8: one 64-column panel is 64 / group groups)
// add:   out += scale * (y + bias)
// glu:   panels 2 i and 2 i + 1 hold gate and up: act(gate) * up, to column panel i of `out` or `acts`
struct Epilogue {
  EpilogueKind kind;
  Activation act;
  float scale;        // add: as above; store with act none: also multiplies (logits scale)
  const float* bias;  // [n] or null, in the packed column order (glu: interleaved like the panels)
  float* out;         // [rows][out_stride]
  int64_t out_stride;
  Acts acts;  // used when out is null
};

// Rows [row_begin, row_end) x output panels [panel_begin, panel_end) (glu: panel pairs). scratch: kLinearScratchBytes,
// 64-byte aligned, private to the calling thread. next: the weights that the thread will probably read after these
// panels, asked for meanwhile by several tiles of rows (a single one asks within its panel); null: the panels behind.
// Store and add write the n columns of f32 `out`; glu writes all 64 of each of its panels, and quantized outputs get
// whole panels too (0 in the pad, which has no weights).
struct LinearArgs {
  Acts x;
  Weight w;
  Epilogue e;
};

// ------------------------------------------------------------------------------------------------------ row operations

struct NormArgs {
  const float* x;  // [rows][x_stride]
  int64_t x_stride;
  int32_t width;
  int32_t layer;  // 0: rms, 1: layer norm
  float eps;
  const float* weight;  // [width]
  const float* bias;    // [width] or null
  float* out;           // f32 output, or null: to `acts`
  int64_t out_stride;
  Acts acts;
};

enum class TableType : int32_t { f32 = 0, f16 = 1, bf16 = 2, q8_0 = 3, q4_0 = 4, q4_1 = 5 };

struct EmbedArgs {
  TableType type;
  const uint8_t* table;  // rows in the checkpoint's own layout (GGUF blocks)
  int64_t row_bytes;
  int32_t width;
  float scale;
  const int32_t* tokens;  // [rows]
  float* out;             // [rows][out_stride]
  int64_t out_stride;
};

// f32 rows to any activation format (the pad is zeroed).
struct QuantizeArgs {
  const float* x;
  int64_t x_stride;
  Acts acts;
};

// ----------------------------------------------------------------------------------------------------------- attention

enum class KvType : int32_t { f32 = 0, bf16 = 1, i8 = 2, e4m3 = 3 };

// One cache group's pool, layer `layer` selected: tile t of kv head h in block b begins at
//   base + b * block_bytes + layer_offset + (h * tiles_per_block + t) * pair_bytes
// with K, V tile_bytes behind, and then the scales of the 16 slots, K's and V's, if the type has them.
// head_pad is head_dim rounded up to 16; tile_bytes = 16 * head_pad * sizeof(element).
//   K tile: [head_pad][16 slots]          V tile: [16 slots][head_pad]             (f32)
//   K tile: [head_pad / 2][16 slots][2]   V tile: [8 slot pairs][head_pad][2]      (bf16)
//   K tile: [head_pad / 4][16 slots][4]   V tile: [4 slot fours][head_pad][4]      (i8, e4m3: then bf16 [2][16] scales)
// i8: value = scale * (byte - 128). e4m3: value = scale * code without subnormals and NaN; of each four values, the
// second and the third have changed places. A slot whose head held a NaN or an infinity has the scale NaN.
struct KvView {
  KvType type;
  uint8_t* base;
  int64_t block_bytes;
  int64_t layer_offset;
  int64_t tile_bytes;
  int64_t pair_bytes;  // a K tile, its V tile and their scales
  int32_t block_size;
  int32_t tiles_per_block;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t head_pad;
};

// Split, per-head rms norm (if weights are set), rope (if rope_dim > 0), write K and V at kv_slots[row].
struct HeadsArgs {
  const float* x;  // [rows][x_stride]: q heads, k heads, v heads
  int64_t x_stride;
  float* q;  // [rows][heads * head_dim]
  int64_t q_stride;
  int32_t heads;
  const float* q_norm;  // [head_dim] or null
  const float* k_norm;
  float eps;
  int32_t rope_dim;
  const float* cos_sin;      // [max_position][rope_dim]: cos of each pair, then sin of each pair
  const int32_t* positions;  // [rows]
  const int64_t* kv_slots;   // [rows]
  KvView kv;
};

struct AttentionArgs {
  const float* q;  // [rows][q_stride]
  int64_t q_stride;
  int32_t heads;
  float scale;
  int32_t window;            // 0: none
  const int32_t* positions;  // [rows]: row attends to cached positions max(0, p - window + 1) .. p
  KvView kv;
  float* out;  // f32, or null: to `acts` (s8: head_dim must be a multiple of the group)
  int64_t out_stride;
  Acts acts;
};

// One item: rows [row_begin, row_end) of one sequence (at most kAttentionRows), one kv head, splits [split_begin,
// split_end). partial == null: the splits hold every position that the rows see, and the result goes to out or acts.
// partial != null: (max, sum, 14 unused, acc[head_pad]) for each split, row and q head of this kv head, in this order,
// attention_partial_floats apart; sum 0 where the row sees nothing of the split. Both ways give the same bits.
constexpr int32_t kAttentionRows = 16;
struct AttentionItem {
  int32_t row_begin;
  int32_t row_end;
  int32_t kv_head;
  int32_t split_begin;
  int32_t split_end;
  const int32_t* block_table;  // logical to physical, of this sequence
  float* partial;              // [split - split_begin][row][group head] entries
  float* scratch;              // attention_scratch bytes, private to the thread
  const AttentionItem* next;   // null, or what the thread will probably do next: its first split is asked for
};

// ------------------------------------------------------------------------------------------------------------- sampler

// Chooses one token of one row. The runtime has already applied penalties and bans (-inf) to `logits`.
// Order: mask, temperature, min_p (relative to the largest), top_k (ties: lower id first), top_p (over what is left,
// largest first), then the inverse CDF in ascending id order: the first id whose running sum exceeds uniform * total.
struct SampleArgs {
  const float* logits;  // [vocab]
  int32_t vocab;
  const uint8_t* mask;    // bit per token id, little-endian, 1 = allowed; or null
  float temperature;      // 0: greedy (the largest, lowest id on a tie)
  int32_t top_k;          // 0: off
  float top_p;            // 1: off
  float min_p;            // 0: off
  float uniform;          // in [0, 1)
  int32_t* scratch_ids;   // [vocab]
  float* scratch_values;  // [vocab]
  int32_t token;          // result; -1: no token is allowed, or the row holds a NaN or +Inf
};

// Log probabilities from raw logits (before penalties, masks and temperature): of `token`, and of the `count` best.
struct LogprobArgs {
  const float* logits;
  int32_t vocab;
  int32_t token;
  int32_t count;
  float logprob;     // result
  int32_t* top_ids;  // results, best first, ties by lower id
  float* top_logprobs;
};

// --------------------------------------------------------------------------------------------------------------- table

struct KernelTable {
  int32_t bf16_bytes;  // of an activation: 2 or 4
  void (*embed)(const EmbedArgs&, int32_t row_begin, int32_t row_end);
  void (*norm)(const NormArgs&, int32_t row_begin, int32_t row_end);
  void (*quantize)(const QuantizeArgs&, int32_t row_begin, int32_t row_end);
  void (*linear)(const LinearArgs&, int32_t row_begin, int32_t row_end, int32_t panel_begin, int32_t panel_end,
                 const uint8_t* next, void* scratch);
  void (*heads_to_cache)(const HeadsArgs&, int32_t row_begin, int32_t row_end);
  void (*attention)(const AttentionArgs&, const AttentionItem&);
  // Merge partials of splits [0, n) in ascending order for one (row, q head).
  void (*attention_merge)(const AttentionArgs&, int32_t row, int32_t head, const float* const* partials, int32_t n);
  void (*sample)(SampleArgs&);
  void (*logprobs)(LogprobArgs&);
  // 1 for each row that holds a NaN or Inf.
  void (*find_faults)(const float* x, int64_t stride, int32_t width, int32_t rows, uint8_t* faults);
};

// Bytes of an activation.
inline size_t value_bytes(const KernelTable& table, ActType type) {
  return type == ActType::f32 ? 4 : type == ActType::bf16 ? static_cast<size_t>(table.bf16_bytes) : 1;
}

// Null when the level was not compiled in. The caller checks cpu_features.h before use.
const KernelTable* kernel_table(Isa isa);

// Whether `linear` multiplies this pair: f32 and f16 weights take f32 rows, bf16 takes bf16, i8 and q4 take s8 rows
// of the weight's group (i8 per channel and i4: any group).
bool linear_accepts(const Acts& x, const Weight& w);

// Scratch sizes, the same for all ISA levels. Of `linear`: the products of kChunkRows rows, for glu of two panels; two
// panels' biases and channel scales; a number for each of kStartRows rows; expanded weights.
constexpr int32_t kChunkRows = 32 * kTileRows;
constexpr int32_t kStartRows = 1024;
constexpr size_t kExpandBytes = 32 << 10;
constexpr size_t kI4ExpandBytes = 256 << 10;  // the whole of most panels: sums of f32 leave L1 less often
constexpr size_t kLinearScratchBytes = ((2 * kChunkRows + 4) * kPanel + kStartRows) * sizeof(float) + kI4ExpandBytes;
size_t attention_scratch_bytes(const KvView& kv, int32_t heads);
int32_t attention_partial_floats(const KvView& kv);  // 16-float aligned

}  // namespace legato
