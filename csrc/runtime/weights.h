// The tensors of a model in memory of its own: huge pages, none of which the kernel can drop.
//
// Reading weights through the file's mapping costs a page-table walk for every 4 KiB of every step; docs/engine-file.md
// has the figures. Once copied, the file's pages can go.
#pragma once

#include <span>
#include <vector>

#include "base/aligned.h"
#include "base/thread_pool.h"
#include "runtime/engine_file.h"

namespace legato {

class ResidentWeights {
 public:
  ResidentWeights(const EngineFile& file, ThreadPool& pool);

  std::span<const TensorView> tensors() const { return tensors_; }

 private:
  AlignedBuffer memory_;
  std::vector<TensorView> tensors_;
};

}  // namespace legato
