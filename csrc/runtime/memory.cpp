#include <algorithm>
#include <stdexcept>
#include <string>

#include "runtime/model.h"

namespace legato {
namespace {

void need(bool ok, const std::string& what) {
  if (!ok) throw std::invalid_argument(what);
}

// The cache as an attention op sees it, without memory.
KvView cache_view(const PlanSpec& plan, const RuntimeOptions& options, const OpSpec& op) {
  const GroupSpec& group = plan.groups[static_cast<size_t>(op.group)];
  return KvPool(group, options.kv_type, options.block_size, 0).layer(op.layer);
}

}  // namespace

void check_options(const EngineFile& file, const RuntimeOptions& options) {
  const auto size = [](const char* name, int64_t value, int64_t low, int64_t high) {
    need(value >= low && value <= high, std::string(name) + " must be from " + std::to_string(low) + " to " +
                                            std::to_string(high) + ", not " + std::to_string(value));
  };
  size("block_size", options.block_size, kKvTile, 4096);
  need(options.block_size % kKvTile == 0, "block_size must be a multiple of " + std::to_string(kKvTile));
  size("num_blocks", options.num_blocks, 1, INT32_MAX / options.block_size);
  size("max_rows", options.max_rows, 1, 1 << 20);
  size("max_seqs", options.max_seqs, 1, 1 << 16);
  size("max_position", options.max_position, 1, file.plan().max_position);
  size("threads", options.threads, 1, 1024);
  need(kernel_table(options.isa) != nullptr, "the ISA level is not compiled in");
}

size_t partial_bytes(const PlanSpec& plan, const RuntimeOptions& options) {
  // Room to cut four decode rows at the last position.
  constexpr size_t kRows = 4;
  size_t bytes = 0;
  for (const OpSpec& op : plan.ops) {
    if (op.kind != OpKind::attention) continue;
    const size_t splits = static_cast<size_t>(last_split(options.max_position - 1)) + 1;
    const size_t entry = static_cast<size_t>(attention_partial_floats(cache_view(plan, options, op))) * sizeof(float);
    bytes = std::max(bytes, kRows * static_cast<size_t>(op.heads) * splits * entry);
  }
  return bytes;
}

bool writes_groups(const PlanSpec& plan, const OpSpec& attention) {
  const BufferSpec& out = plan.buffers[static_cast<size_t>(attention.out)];
  return out.type != ActType::s8 || attention.head_dim % out.group == 0;
}

size_t staging_bytes(const PlanSpec& plan, const RuntimeOptions& options) {
  size_t width = 0;
  for (const OpSpec& op : plan.ops) {
    if (op.kind != OpKind::attention || writes_groups(plan, op)) continue;
    width = std::max(width, round_up(static_cast<size_t>(plan.buffers[static_cast<size_t>(op.out)].width), kPanel));
  }
  return width * static_cast<size_t>(options.max_rows) * sizeof(float);
}

size_t kernel_scratch_bytes(const PlanSpec& plan, const RuntimeOptions& options) {
  size_t bytes = kLinearScratchBytes;
  for (const OpSpec& op : plan.ops) {
    if (op.kind != OpKind::attention) continue;
    bytes = std::max(bytes, attention_scratch_bytes(cache_view(plan, options, op), op.heads));
  }
  return round_up(bytes, kAlignment);
}

MemoryNeed memory_need(const EngineFile& file, const RuntimeOptions& options) {
  const PlanSpec& plan = file.plan();
  MemoryNeed need{};
  need.weights = file.data().size();
  const int32_t outs = std::min(options.max_rows, options.max_seqs);
  need.workspace =
      plan_workspace(plan, *kernel_table(options.isa), options.max_rows, outs).bytes + staging_bytes(plan, options);
  for (const RopeSpec& rope : plan.ropes) {
    need.tables += sizeof(float) * static_cast<size_t>(rope.dim) * static_cast<size_t>(options.max_position);
  }
  const size_t sampling = static_cast<size_t>(plan.vocab) * 8 + static_cast<size_t>(plan.vocab) / 8;
  need.scratch = partial_bytes(plan, options) +
                 static_cast<size_t>(options.threads) * (kernel_scratch_bytes(plan, options) + sampling);
  for (const GroupSpec& group : plan.groups) {
    need.bytes_per_block.push_back(KvPool::bytes_per_block(group, options.kv_type, options.block_size));
  }
  return need;
}

}  // namespace legato
