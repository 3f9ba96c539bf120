// The instruction-set levels that kernels are compiled for, in ascending order.
#pragma once

#include <cstdint>

namespace legato {

enum class Isa : int32_t { portable = 0, avx2 = 1, avx512 = 2, avx512_vnni = 3, avx512_bf16 = 4 };

constexpr int32_t kIsaCount = 5;

}  // namespace legato
