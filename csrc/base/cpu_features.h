// Which ISA levels this CPU and this operating system can run, and the choice of one.
#pragma once

#include <string>

#include "base/isa.h"

namespace legato {

// "portable", "avx2", "avx2_vnni", "avx512", "avx512_vnni" or "avx512_bf16".
const char* isa_name(Isa isa);

// Null where the level can be used here; else a short reason, such as "the CPU lacks AVX512_BF16".
// A feature bit alone is not permission: the operating system must also save the registers (XCR0).
const char* isa_obstacle(Isa isa);

// The fastest usable level, or the one named by `forced` (null or empty: none is forced; "vnni" and "bf16" are short
// names). std::invalid_argument for an unknown name or a level that cannot be used here.
Isa choose_isa(const char* forced);

}  // namespace legato
