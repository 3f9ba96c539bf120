// What a core can do at best, for benchmarks: multiply-adds on registers, and reads of memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/isa.h"

namespace legato {

enum class PeakKind : int32_t { f32, bf16, i8 };

struct MachineTable {
  // `rounds` rounds of independent multiply-adds, as the linear kernels issue them at this level (a level without an
  // instruction for bf16 or bytes widens them, which is not counted here). Returns operations done: two for each
  // multiply-add. `out`, kMachineFloats values, gets what no one reads.
  double (*multiply_adds)(PeakKind kind, int64_t rounds, float* out);
  // Reads `lines` 64-byte lines, 64-byte aligned and a multiple of kReadLines. `out` as above.
  void (*read)(const float* data, size_t lines, float* out);
};

constexpr int32_t kMachineFloats = 16;
constexpr size_t kReadLines = 4;

// Null when the level was not compiled in. The caller checks cpu_features.h before use.
const MachineTable* machine_table(Isa isa);

}  // namespace legato
