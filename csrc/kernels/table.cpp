// The tables of all ISA levels that were compiled in.
#include "kernels/kernels.h"
#include "kernels/machine.h"

namespace legato {

namespace portable {
extern const KernelTable kTable;
extern const MachineTable kMachine;
}  // namespace portable
#if defined(__x86_64__)
namespace avx2 {
extern const KernelTable kTable;
extern const MachineTable kMachine;
}  // namespace avx2
namespace avx2_vnni {
extern const KernelTable kTable;
extern const MachineTable kMachine;
}  // namespace avx2_vnni
namespace avx512 {
extern const KernelTable kTable;
extern const MachineTable kMachine;
}  // namespace avx512
namespace avx512_vnni {
extern const KernelTable kTable;
extern const MachineTable kMachine;
}  // namespace avx512_vnni
namespace avx512_bf16 {
extern const KernelTable kTable;
extern const MachineTable kMachine;
}  // namespace avx512_bf16
#endif

namespace {

struct Level {
  const KernelTable* kernels;
  const MachineTable* machine;
};

// By Isa; null where a level was not compiled in.
constexpr Level kLevels[kIsaCount] = {
    {&portable::kTable, &portable::kMachine},
#if defined(__x86_64__)
    {&avx2::kTable, &avx2::kMachine},
    {&avx2_vnni::kTable, &avx2_vnni::kMachine},
    {&avx512::kTable, &avx512::kMachine},
    {&avx512_vnni::kTable, &avx512_vnni::kMachine},
    {&avx512_bf16::kTable, &avx512_bf16::kMachine},
#endif
};

}  // namespace

const KernelTable* kernel_table(Isa isa) { return kLevels[static_cast<int32_t>(isa)].kernels; }

const MachineTable* machine_table(Isa isa) { return kLevels[static_cast<int32_t>(isa)].machine; }

bool linear_accepts(const Acts& x, const Weight& w) {
  if (x.k != w.k || x.k_pad != w.k_pad) return false;
  switch (w.type) {
    case WeightType::f32:
    case WeightType::f16:
      return x.type == ActType::f32;
    case WeightType::bf16:
      return x.type == ActType::bf16;
    case WeightType::i8:
    case WeightType::q4:
      return x.type == ActType::s8 && (x.group == 32 || x.group == 64) && w.group % x.group == 0;
    case WeightType::i4:
      return x.type == ActType::s8 && (x.group == 32 || x.group == 64);
  }
  return false;
}

int32_t attention_partial_floats(const KvView& kv) { return 16 + kv.head_pad; }

// Partials of every query of a full item; then, for a block of at most 12 queries, partials, scores and probabilities
// of one split; then the queries themselves.
size_t attention_scratch_bytes(const KvView& kv, int32_t heads) {
  constexpr size_t kBlock = 12;
  const size_t queries = static_cast<size_t>(kAttentionRows) * static_cast<size_t>(heads / kv.kv_heads);
  const size_t partial = static_cast<size_t>(attention_partial_floats(kv));
  const size_t values = static_cast<size_t>(kv.head_pad) * queries + kBlock * kKvSplit;
  return ((queries + kBlock) * partial + kBlock * kKvSplit + values) * sizeof(float);
}

}  // namespace legato
