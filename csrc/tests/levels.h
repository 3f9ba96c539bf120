// What the kernel tests share.
#pragma once

#include <cstdint>
#include <vector>

#include "base/cpu_features.h"
#include "kernels/kernels.h"
#include "tests/guarded.h"

namespace legato {

// The tables of all levels that this machine can run.
inline std::vector<const KernelTable*> usable_levels() {
  std::vector<const KernelTable*> tables;
  for (int32_t i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (isa_obstacle(isa) == nullptr) tables.push_back(kernel_table(isa));
  }
  CHECK(!tables.empty());
  return tables;
}

// Numbers in [-1, 1), the same for the same seed.
inline void fill(Guarded<float>& values, uint32_t seed) {
  for (size_t i = 0; i < values.size(); ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = static_cast<float>(seed >> 8) * 0x1p-23f - 1.0f;
  }
}

}  // namespace legato
