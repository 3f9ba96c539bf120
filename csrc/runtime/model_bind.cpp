// Loading: everything that does not depend on the step is computed once.
#include <algorithm>
#include <cmath>

#include "runtime/model.h"

namespace legato {
namespace {

StepLimits make_limits(const EngineFile& file, const RuntimeOptions& options) {
  check_options(file, options);
  StepLimits limits{};
  limits.vocab = file.plan().vocab;
  limits.max_rows = options.max_rows;
  limits.max_seqs = options.max_seqs;
  limits.max_position = options.max_position;
  limits.block_size = options.block_size;
  limits.num_blocks = options.num_blocks;
  for (const GroupSpec& group : file.plan().groups) limits.windows.push_back(group.window);
  return limits;
}

// [max_position][dim]: the cosines of all pairs, then their sines.
AlignedBuffer rope_table(const RopeSpec& rope, int32_t max_position, ThreadPool& pool) {
  const size_t half = static_cast<size_t>(rope.dim / 2);
  AlignedBuffer table(static_cast<size_t>(max_position) * 2 * half * sizeof(float), Pages::huge);
  constexpr int32_t kChunk = 256;
  auto fill = [&](int64_t chunk, int) {
    const auto begin = static_cast<int32_t>(chunk) * kChunk;
    for (int32_t p = begin; p < std::min(begin + kChunk, max_position); ++p) {
      float* row = table.as<float>() + static_cast<size_t>(p) * 2 * half;
      for (size_t i = 0; i < half; ++i) {
        const double angle = p * rope.inv_freq[i];
        row[i] = static_cast<float>(std::cos(angle) * rope.factor);
        row[half + i] = static_cast<float>(std::sin(angle) * rope.factor);
      }
    }
  };
  pool.run((max_position + kChunk - 1) / kChunk, fill);
  return table;
}

}  // namespace

Model::Model(const EngineFile& file, const RuntimeOptions& options)
    : plan_(file.plan()),
      options_(options),
      limits_(make_limits(file, options)),
      max_outs_(std::min(options.max_rows, options.max_seqs)),
      kernels_(*kernel_table(options.isa)),
      pool_(options.threads),
      weights_(file, pool_),
      workspace_(plan_, kernels_, limits_.max_rows, max_outs_),
      partials_(partial_bytes(plan_, options)),
      staging_(staging_bytes(plan_, options), Pages::huge),
      slots_(static_cast<size_t>(options.max_seqs)) {
  for (const GroupSpec& group : plan_.groups) {
    kv_.emplace_back(group, options.kv_type, options.block_size, options.num_blocks);
    if (options.prefault_kv) kv_.back().prefault(pool_);
  }
  for (const RopeSpec& rope : plan_.ropes) ropes_.push_back(rope_table(rope, options.max_position, pool_));
  const size_t scratch = kernel_scratch_bytes(plan_, options);
  for (int t = 0; t < options.threads; ++t) {
    threads_.push_back({AlignedBuffer(scratch), SamplingScratch(limits_.vocab), {}});
    threads_.back().partials.resize(static_cast<size_t>(last_split(options.max_position - 1)) + 1);
  }
  for (const OpSpec& op : plan_.ops) ops_.push_back(bind(op));
  link_linear_ops();
  const auto selects = [](const BoundOp& op) { return op.kind == OpKind::select_rows; };
  first_out_op_ = static_cast<size_t>(std::find_if(ops_.begin(), ops_.end(), selects) - ops_.begin());
  works_.resize(shapes_.size());
}

void Model::link_linear_ops() {
  const auto multiplies = [](const BoundOp& op) { return op.kind == OpKind::linear || op.kind == OpKind::logits; };
  const auto first = std::find_if(ops_.begin(), ops_.end(), multiplies);
  size_t next = static_cast<size_t>(first - ops_.begin());
  for (size_t i = ops_.size(); i-- > 0;) {
    if (!multiplies(ops_[i])) continue;
    ops_[i].next_linear = next;
    next = i;
  }
}

const float* Model::vector(int32_t index) const {
  return index < 0 ? nullptr : reinterpret_cast<const float*>(tensor(index).data);
}

// A buffer that a matmul reads is written as activations, with its pad; another f32 buffer as plain rows.
bool Model::as_acts(int32_t index) const {
  if (buffer(index).type != ActType::f32) return true;
  const auto& ops = plan_.ops;
  return std::any_of(ops.begin(), ops.end(), [index](const OpSpec& op) {
    return op.x == index && (op.kind == OpKind::linear || op.kind == OpKind::logits);
  });
}

BoundOp Model::bind(const OpSpec& op) {
  BoundOp bound{op.kind, buffer(op.out).out_domain, 0, {}};
  const int64_t stride = workspace_.stride(op.out);
  switch (op.kind) {
    case OpKind::embed: {
      const TensorView& table = tensor(op.weight);
      bound.args = EmbedArgs{table.table_type, table.data, table.row_bytes,        table.k,
                             op.scale,         nullptr,    workspace_.f32(op.out), stride};
      break;
    }
    case OpKind::norm: {
      NormArgs args{workspace_.f32(op.x),
                    workspace_.stride(op.x),
                    buffer(op.x).width,
                    op.norm,
                    op.eps,
                    vector(op.weight),
                    vector(op.weight2),
                    nullptr,
                    stride,
                    workspace_.acts(op.out)};
      if (!as_acts(op.out)) args.out = workspace_.f32(op.out);
      bound.args = args;
      break;
    }
    case OpKind::linear:
    case OpKind::logits:
      bound.args = bind_linear(op);
      break;
    case OpKind::heads_to_cache:
      bound.args = bind_heads(op);
      break;
    case OpKind::attention:
      bound.args = bind_attention(op);
      break;
    case OpKind::select_rows:
      bound.args = SelectArgs{workspace_.f32(op.x), workspace_.f32(op.out), stride, buffer(op.out).width};
      break;
  }
  return bound;
}

LinearArgs Model::bind_linear(const OpSpec& op) const {
  LinearArgs args{};
  args.x = workspace_.acts(op.x);
  args.w = tensor(op.weight).weight;
  args.e.kind = op.epilogue;
  args.e.act = op.act;
  args.e.scale = op.scale;
  args.e.bias = vector(op.weight2);
  args.e.out_stride = workspace_.stride(op.out);
  const bool partial = op.epilogue == EpilogueKind::store && args.w.n < buffer(op.out).width;
  if (op.epilogue == EpilogueKind::add || partial || !as_acts(op.out)) {
    args.e.out = workspace_.f32(op.out) + op.column;
  } else {
    args.e.acts = workspace_.acts(op.out);
  }
  return args;
}

BoundHeads Model::bind_heads(const OpSpec& op) const {
  HeadsArgs args{};
  args.x = workspace_.f32(op.x);
  args.x_stride = workspace_.stride(op.x);
  args.q = workspace_.f32(op.out);
  args.q_stride = workspace_.stride(op.out);
  args.heads = op.heads;
  args.q_norm = vector(op.weight);
  args.k_norm = vector(op.weight2);
  args.eps = op.eps;
  if (op.rope >= 0) {
    args.rope_dim = plan_.ropes[static_cast<size_t>(op.rope)].dim;
    args.cos_sin = ropes_[static_cast<size_t>(op.rope)].as<float>();
  }
  args.kv = kv_[static_cast<size_t>(op.group)].layer(op.layer);
  return {args, op.group};
}

BoundAttention Model::bind_attention(const OpSpec& op) {
  AttentionArgs args{};
  args.q = workspace_.f32(op.x);
  args.q_stride = workspace_.stride(op.x);
  args.heads = op.heads;
  args.scale = op.scale;
  args.window = op.window;
  args.kv = kv_[static_cast<size_t>(op.group)].layer(op.layer);
  args.out_stride = workspace_.stride(op.out);
  args.acts = workspace_.acts(op.out);
  const bool quantize = !writes_groups(plan_, op);
  if (quantize) args.out = staging_.as<float>();
  if (!as_acts(op.out)) args.out = workspace_.f32(op.out);

  const int64_t entry = static_cast<int64_t>(sizeof(float)) * attention_partial_floats(args.kv);
  const AttentionShape shape{op.kv_heads, op.heads / op.kv_heads, op.window, options_.threads,
                             static_cast<int64_t>(partials_.size()) / entry};
  if (std::find(shapes_.begin(), shapes_.end(), shape) == shapes_.end()) shapes_.push_back(shape);
  const auto work = std::find(shapes_.begin(), shapes_.end(), shape) - shapes_.begin();
  return {args, op.group, static_cast<int32_t>(work), quantize, {args.out, args.out_stride, args.acts}};
}

}  // namespace legato
