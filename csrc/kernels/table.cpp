// The kernel tables of all ISA levels that were compiled in.
#include "kernels/kernels.h"

namespace legato {

namespace portable {
extern const KernelTable kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx512_vnni {
extern const KernelTable kTable;
}
namespace avx512_bf16 {
extern const KernelTable kTable;
}
#endif

const KernelTable* kernel_table(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return &portable::kTable;
#if defined(__x86_64__)
    case Isa::avx2:
      return &avx2::kTable;
    case Isa::avx512:
      return &avx512::kTable;
    case Isa::avx512_vnni:
      return &avx512_vnni::kTable;
    case Isa::avx512_bf16:
      return &avx512_bf16::kTable;
#endif
    default:
      return nullptr;
  }
}

}  // namespace legato
