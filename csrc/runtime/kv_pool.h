// The KV cache: one pool of blocks per cache group. All layers of one block are contiguous, so that a block is copied
// with one memcpy. Pages are taken from the system when first written.
#pragma once

#include <span>
#include <vector>

#include "base/aligned.h"
#include "base/thread_pool.h"
#include "runtime/plan.h"

namespace legato {

class KvPool {
 public:
  // std::bad_alloc where the address space does not hold the pool.
  KvPool(const GroupSpec& group, KvType type, int32_t block_size, int32_t num_blocks);

  static int64_t bytes_per_block(const GroupSpec& group, KvType type, int32_t block_size);

  KvView layer(int32_t layer) const;
  // The bytes of a block, all layers.
  std::span<uint8_t> block(int32_t index);
  void copy_block(int32_t source, int32_t target);
  // Touches every page, so that the memory is there before the first request.
  void prefault(ThreadPool& pool);

 private:
  KvView view_;
  int64_t layer_bytes_;
  AlignedBuffer memory_;
};

}  // namespace legato
