// The plan as the runtime walks it: the PLAN section of an engine file, parsed and checked.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace legato {

// Largest size in a file: far above any model, and low enough that no product of two of them overflows 64 bits.
constexpr int64_t kMaxDim = 1 << 26;

// A file that cannot be used; the message says what is wrong with it.
class EngineFileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Reads fixed little-endian records out of a section; every read is bounds-checked.
class RecordReader {
 public:
  RecordReader(std::span<const uint8_t> data, const char* section) : data_(data), section_(section) {}

  uint32_t u32();
  uint64_t u64();
  int32_t i32() { return static_cast<int32_t>(u32()); }
  float f32();
  double f64();
  void skip(size_t bytes) { take(bytes); }
  std::span<const uint8_t> take(size_t bytes);
  size_t left() const { return data_.size() - at_; }
  // An unsigned value in [low, high]; the error names `what`.
  int32_t in_range(const char* what, int64_t low, int64_t high);

 private:
  std::span<const uint8_t> data_;
  const char* section_;
  size_t at_ = 0;
};

enum class TensorKind : int32_t { linear = 0, table = 1, vector = 2 };

// A tensor of an engine file. Linear: `weight` with its panels. Table: rows of row_bytes in `table_type`'s layout.
// Vector: n floats, readable up to the next multiple of 64.
struct TensorView {
  TensorKind kind;
  TableType table_type;
  Weight weight;
  int32_t n;
  int32_t k;
  int64_t row_bytes;
  const uint8_t* data;
};

struct GroupSpec {
  int32_t window;  // 0: none
  int32_t layers;
  int32_t kv_heads;
  int32_t head_dim;
};

struct BufferSpec {
  int32_t width;
  ActType type;
  int32_t group;    // s8 only
  bool out_domain;  // a line per output row, not per row
};

// The format of a buffer's rows, without memory.
Acts describe_acts(const BufferSpec& buffer);

struct RopeSpec {
  int32_t dim;
  double factor;
  std::vector<double> inv_freq;
};

enum class OpKind : int32_t { embed, norm, linear, heads_to_cache, attention, select_rows, logits };
constexpr int32_t kOpKinds = 7;
const char* op_name(OpKind kind);

// Buffers and tensors by index, -1: absent. The fields an op does not use are 0 (scale 1, rope -1).
struct OpSpec {
  OpKind kind;
  int32_t x, out;
  int32_t weight, weight2;  // weight2: bias, or the norm of k
  EpilogueKind epilogue;
  Activation act;
  int32_t norm;  // 0: rms, 1: layer
  int32_t group, layer, heads, kv_heads, head_dim, rope, window;
  int32_t column;  // first output column of a store
  float scale, eps;
};

struct PlanSpec {
  int32_t vocab, max_position;
  std::vector<GroupSpec> groups;
  std::vector<BufferSpec> buffers;
  std::vector<RopeSpec> ropes;
  std::vector<OpSpec> ops;
};

// Parses the records; sizes and enumerations are in range afterwards. EngineFileError else.
PlanSpec parse_plan(std::span<const uint8_t> section);

// Checks that every index, shape and format fits its op, so that running the plan touches no byte outside its
// buffers and tensors. EngineFileError names the op.
void check_plan(const PlanSpec& plan, std::span<const TensorView> tensors);

}  // namespace legato
