// The instruction-set levels that kernels are compiled for, in ascending order.
#pragma once

#include <cstdint>

namespace legato {

enum class Isa : int32_t { portable = 0, avx2 = 1, avx2_vnni = 2, avx512 = 3, avx512_vnni = 4, avx512_bf16 = 5 };

constexpr int32_t kIsaCount = 6;

}  // namespace legato
