// Memory for the plan's buffers, sized for the largest step. Buffers that are never live together share bytes.
#pragma once

#include <vector>

#include "base/aligned.h"
#include "runtime/plan.h"

namespace legato {

// Where one buffer's parts begin in the workspace. f32 buffers are [rows][stride], stride = width rounded up to 64.
struct BufferPlace {
  size_t data, scales, sums;
  size_t bytes;  // of all parts
};

struct WorkspacePlan {
  std::vector<BufferPlace> places;  // per buffer
  size_t bytes;
};

// live[i][b]: buffer b holds a value that is needed after op i, or is touched by op i.
std::vector<std::vector<bool>> buffer_liveness(const PlanSpec& plan);

// max_outs: output rows that are computed together; a step with more of them goes through the last ops in pieces.
WorkspacePlan plan_workspace(const PlanSpec& plan, const KernelTable& kernels, int32_t max_rows, int32_t max_outs);

class Workspace {
 public:
  Workspace(const PlanSpec& plan, const KernelTable& kernels, int32_t max_rows, int32_t max_outs);

  // A buffer as activations (any format), or as f32 rows of `stride` floats.
  Acts acts(int32_t buffer) const;
  float* f32(int32_t buffer) const;
  int64_t stride(int32_t buffer) const;

 private:
  std::vector<BufferSpec> buffers_;
  WorkspacePlan layout_;
  AlignedBuffer memory_;
  uint8_t* base_;
};

}  // namespace legato
