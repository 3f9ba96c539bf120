// Every kernel, compiled for one ISA level (LEGATO_ISA_NS).
//
// All of it lives in an unnamed namespace: a function with external linkage compiled for AVX-512 could be the copy that
// the linker picks for everybody. Hence no standard library here either; tools/check_isa_objects.py looks.
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/kernels.h"

namespace legato {
namespace LEGATO_ISA_NS {
namespace {

// clang-format off: in order of use
#include "kernels/simd-inl.h"
#include "kernels/rows/store-inl.h"
#include "kernels/rows/embed-inl.h"
#include "kernels/rows/norm-inl.h"
#include "kernels/rows/quantize-inl.h"
#include "kernels/linear/dot-inl.h"
#include "kernels/linear/tile-inl.h"
#include "kernels/linear/code_tile-inl.h"
#include "kernels/linear/activation-inl.h"
#include "kernels/linear/epilogue-inl.h"
#include "kernels/linear/expand-inl.h"
#include "kernels/linear/linear-inl.h"
#include "kernels/heads/cache-inl.h"
#include "kernels/heads/heads-inl.h"
#include "kernels/attention/values-inl.h"
#include "kernels/attention/tiles-inl.h"
#include "kernels/attention/codes-inl.h"
#include "kernels/attention/attention-inl.h"
#include "kernels/sample/select-inl.h"
#include "kernels/sample/logits-inl.h"
#include "kernels/sample/sample-inl.h"
#include "kernels/sample/logprobs-inl.h"
// clang-format on

}  // namespace

extern const KernelTable kTable;
const KernelTable kTable = {
    kBf16Bytes, embed,           norm,   quantize, linear,      heads_to_cache,
    attention,  attention_merge, sample, logprobs, find_faults,
};

}  // namespace LEGATO_ISA_NS
}  // namespace legato
