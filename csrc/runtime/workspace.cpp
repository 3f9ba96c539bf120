#include "runtime/workspace.h"

#include <algorithm>
#include <numeric>

namespace legato {
namespace {

size_t k_pad(const BufferSpec& buffer) { return round_up(static_cast<size_t>(buffer.width), kPanel); }

BufferPlace measure(const BufferSpec& buffer, const KernelTable& kernels, size_t rows) {
  const size_t groups = buffer.type == ActType::s8 ? k_pad(buffer) / static_cast<size_t>(buffer.group) : 0;
  const size_t data = round_up(rows * k_pad(buffer) * value_bytes(kernels, buffer.type), kAlignment);
  const size_t scales = round_up(rows * groups * 4, kAlignment);
  return {0, data, data + scales, data + 2 * scales};
}

void move_to(BufferPlace& place, size_t offset) {
  place.data += offset;
  place.scales += offset;
  place.sums += offset;
}

}  // namespace

std::vector<std::vector<bool>> buffer_liveness(const PlanSpec& plan) {
  std::vector<std::vector<bool>> live(plan.ops.size());
  std::vector<bool> needed(plan.buffers.size());
  for (const OpSpec& op : plan.ops) {  // read again for each piece of the output rows
    if (op.kind == OpKind::select_rows) needed[static_cast<size_t>(op.x)] = true;
  }
  for (size_t i = plan.ops.size(); i-- > 0;) {
    const OpSpec& op = plan.ops[i];
    // Adds to what is there, or writes some columns of it.
    const bool updates = op.kind == OpKind::linear && (op.epilogue == EpilogueKind::add || op.column > 0);
    live[i] = needed;
    live[i][static_cast<size_t>(op.out)] = true;
    needed[static_cast<size_t>(op.out)] = updates;
    if (op.x >= 0) live[i][static_cast<size_t>(op.x)] = needed[static_cast<size_t>(op.x)] = true;
  }
  return live;
}

WorkspacePlan plan_workspace(const PlanSpec& plan, const KernelTable& kernels, int32_t max_rows, int32_t max_outs) {
  const size_t count = plan.buffers.size();
  const auto live = buffer_liveness(plan);
  WorkspacePlan result{};
  for (const BufferSpec& buffer : plan.buffers) {
    result.places.push_back(measure(buffer, kernels, static_cast<size_t>(buffer.out_domain ? max_outs : max_rows)));
  }
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return result.places[a].bytes > result.places[b].bytes; });

  // Largest first, each at the lowest offset where no buffer that is live with it lies.
  std::vector<size_t> placed;
  for (size_t b : order) {
    std::vector<size_t> rivals;
    for (size_t other : placed) {
      const bool together = std::any_of(live.begin(), live.end(), [&](const auto& l) { return l[b] && l[other]; });
      if (together) rivals.push_back(other);
    }
    std::sort(rivals.begin(), rivals.end(),
              [&](size_t a, size_t c) { return result.places[a].data < result.places[c].data; });
    size_t offset = 0;
    for (size_t other : rivals) {
      const BufferPlace& taken = result.places[other];
      if (offset + result.places[b].bytes <= taken.data) break;
      offset = std::max(offset, taken.data + taken.bytes);
    }
    move_to(result.places[b], offset);
    result.bytes = std::max(result.bytes, offset + result.places[b].bytes);
    placed.push_back(b);
  }
  return result;
}

Workspace::Workspace(const PlanSpec& plan, const KernelTable& kernels, int32_t max_rows, int32_t max_outs)
    : buffers_(plan.buffers),
      layout_(plan_workspace(plan, kernels, max_rows, max_outs)),
      memory_(layout_.bytes, Pages::huge),
      base_(memory_.as<uint8_t>()) {}

Acts Workspace::acts(int32_t buffer) const {
  const BufferSpec& spec = buffers_[static_cast<size_t>(buffer)];
  const BufferPlace& place = layout_.places[static_cast<size_t>(buffer)];
  Acts acts = describe_acts(spec);
  acts.data = base_ + place.data;
  if (spec.type == ActType::s8) {
    acts.scales = reinterpret_cast<float*>(base_ + place.scales);
    acts.sums = reinterpret_cast<int32_t*>(base_ + place.sums);
  }
  return acts;
}

float* Workspace::f32(int32_t buffer) const {
  return reinterpret_cast<float*>(base_ + layout_.places[static_cast<size_t>(buffer)].data);
}

int64_t Workspace::stride(int32_t buffer) const {
  return static_cast<int64_t>(k_pad(buffers_[static_cast<size_t>(buffer)]));
}

}  // namespace legato
