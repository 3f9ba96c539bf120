#include <bit>
#include <cmath>
#include <cstring>

#include "base/aligned.h"
#include "runtime/plan.h"

namespace legato {
namespace {

constexpr int64_t kMaxCount = 1 << 16;

OpSpec parse_op(RecordReader& in, const PlanSpec& plan, int64_t tensors) {
  const int64_t buffers = static_cast<int64_t>(plan.buffers.size());
  OpSpec op{};
  op.kind = static_cast<OpKind>(in.in_range("op kind", 0, kOpKinds - 1));
  op.x = in.in_range("op input", -1, buffers - 1);
  op.out = in.in_range("op output", 0, buffers - 1);
  op.weight = in.in_range("op weight", -1, tensors - 1);
  op.weight2 = in.in_range("op bias", -1, tensors - 1);
  op.epilogue = static_cast<EpilogueKind>(in.in_range("epilogue", 0, 2));
  op.act = static_cast<Activation>(in.in_range("activation", 0, 4));
  op.norm = in.in_range("norm", 0, 1);
  op.group = in.in_range("cache group", 0, kMaxCount);
  op.layer = in.in_range("layer", 0, kMaxCount);
  op.heads = in.in_range("heads", 0, kMaxCount);
  op.kv_heads = in.in_range("KV heads", 0, kMaxCount);
  op.head_dim = in.in_range("head_dim", 0, kMaxCount);
  op.rope = in.in_range("rope", -1, static_cast<int64_t>(plan.ropes.size()) - 1);
  op.window = in.in_range("window", 0, kMaxDim);
  op.column = in.in_range("column", 0, kMaxDim);
  op.scale = in.f32();
  op.eps = in.f32();
  if (!std::isfinite(op.scale) || !std::isfinite(op.eps))
    throw EngineFileError("PLAN: an op has a constant of NaN or Inf");
  return op;
}

RopeSpec parse_rope(RecordReader& in) {
  RopeSpec rope{};
  rope.dim = in.in_range("rope dim", 2, kMaxCount);
  in.skip(4);
  rope.factor = in.f64();
  if (rope.dim % 2 != 0 || !std::isfinite(rope.factor)) throw EngineFileError("PLAN: a rope is malformed");
  if (in.left() / 8 < static_cast<size_t>(rope.dim / 2)) throw EngineFileError("PLAN: ends inside a rope");
  for (int32_t i = 0; i < rope.dim / 2; ++i) {
    rope.inv_freq.push_back(in.f64());
    if (!std::isfinite(rope.inv_freq.back())) throw EngineFileError("PLAN: a rope frequency is NaN or Inf");
  }
  return rope;
}

BufferSpec parse_buffer(RecordReader& in) {
  BufferSpec buffer{};
  buffer.width = in.in_range("buffer width", 1, kMaxDim);
  buffer.type = static_cast<ActType>(in.in_range("buffer type", 0, 2));
  buffer.group = in.in_range("buffer group", 0, 64);
  buffer.out_domain = in.in_range("buffer domain", 0, 1) == 1;
  const bool grouped = buffer.group == 32 || buffer.group == 64;
  if (buffer.type == ActType::s8 ? !grouped : buffer.group != 0)
    throw EngineFileError("PLAN: a buffer's group is wrong");
  return buffer;
}

}  // namespace

std::span<const uint8_t> RecordReader::take(size_t bytes) {
  if (bytes > left()) throw EngineFileError(std::string(section_) + ": ends too early");
  at_ += bytes;
  return data_.subspan(at_ - bytes, bytes);
}

uint32_t RecordReader::u32() {
  uint32_t value;
  std::memcpy(&value, take(4).data(), 4);
  return value;
}

uint64_t RecordReader::u64() {
  uint64_t value;
  std::memcpy(&value, take(8).data(), 8);
  return value;
}

float RecordReader::f32() { return std::bit_cast<float>(u32()); }

double RecordReader::f64() { return std::bit_cast<double>(u64()); }

int32_t RecordReader::in_range(const char* what, int64_t low, int64_t high) {
  const int32_t value = i32();
  if (value < low || value > high) {
    throw EngineFileError(std::string(section_) + ": " + what + " " + std::to_string(value) + " is out of range");
  }
  return value;
}

Acts describe_acts(const BufferSpec& buffer) {
  const size_t k_pad = round_up(static_cast<size_t>(buffer.width), kPanel);
  return {buffer.type, buffer.width, static_cast<int32_t>(k_pad), buffer.group, nullptr, nullptr, nullptr};
}

const char* op_name(OpKind kind) {
  constexpr const char* kNames[kOpKinds] = {"embed",     "norm",        "linear", "heads_to_cache",
                                            "attention", "select_rows", "logits"};
  return kNames[static_cast<int32_t>(kind)];
}

PlanSpec parse_plan(std::span<const uint8_t> section) {
  RecordReader in(section, "PLAN");
  PlanSpec plan{};
  plan.vocab = in.in_range("vocab", 1, kMaxDim);
  in.in_range("hidden", 1, kMaxDim);  // the buffers say it too
  plan.max_position = in.in_range("max_position", 1, kMaxDim);
  const int32_t groups = in.in_range("number of cache groups", 0, 64);
  const int32_t buffers = in.in_range("number of buffers", 1, kMaxCount);
  const int32_t ropes = in.in_range("number of ropes", 0, 64);
  const int32_t ops = in.in_range("number of ops", 1, kMaxCount);
  in.skip(4);
  for (int32_t i = 0; i < groups; ++i) {
    const bool windowed = in.in_range("cache group kind", 0, 1) == 1;
    GroupSpec group{};
    group.window = in.in_range("window", 0, kMaxDim);
    group.layers = in.in_range("cached layers", 1, kMaxCount);
    group.kv_heads = in.in_range("KV heads", 1, kMaxCount);
    group.head_dim = in.in_range("head_dim", 1, kMaxHeadDim);
    in.skip(12);
    if (windowed != (group.window > 0)) throw EngineFileError("PLAN: a cache group's window does not fit its kind");
    plan.groups.push_back(group);
  }
  for (int32_t i = 0; i < buffers; ++i) plan.buffers.push_back(parse_buffer(in));
  for (int32_t i = 0; i < ropes; ++i) plan.ropes.push_back(parse_rope(in));
  for (int32_t i = 0; i < ops; ++i) plan.ops.push_back(parse_op(in, plan, kMaxCount));
  if (in.left() != 0) throw EngineFileError("PLAN: has bytes after the last op");
  return plan;
}

}  // namespace legato
