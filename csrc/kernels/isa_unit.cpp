// Every kernel, compiled for one ISA level (LEGATO_ISA_NS). Included files hold static functions only.
#include "kernels/kernels.h"

namespace legato {
namespace LEGATO_ISA_NS {
namespace {

// Kernel families are included here, in order of use: simd, rows, linear, heads, attention, sample.

}  // namespace

#define LEGATO_STRING_(x) #x
#define LEGATO_STRING(x) LEGATO_STRING_(x)

extern const KernelTable kTable;
const KernelTable kTable = {
    Isa::LEGATO_ISA_NS,
    LEGATO_STRING(LEGATO_ISA_NS),
    nullptr,  // embed
    nullptr,  // norm
    nullptr,  // quantize
    nullptr,  // linear
    nullptr,  // heads_to_cache
    nullptr,  // attention
    nullptr,  // attention_merge
    nullptr,  // sample
    nullptr,  // logprobs
    nullptr,  // find_faults
};

}  // namespace LEGATO_ISA_NS
}  // namespace legato
