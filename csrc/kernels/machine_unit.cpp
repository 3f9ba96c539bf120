// machine.h, compiled for one ISA level (LEGATO_ISA_NS). The rules of isa_unit.cpp hold.
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/kernels.h"
#include "kernels/machine.h"

namespace legato {
namespace LEGATO_ISA_NS {
namespace {

// clang-format off: in order of use
#include "kernels/simd-inl.h"
#include "kernels/linear/dot-inl.h"
// clang-format on

constexpr int32_t kChains = 12;  // more than latency times issue width: two pipes of four cycles need eight
constexpr int32_t kUnroll = 16;

static_assert(kLanes <= kMachineFloats);

// Every step depends on its own chain, so that none can be left out or moved out of the loop.
struct PeakF32 {
  using Acc = Vf;
  static constexpr int32_t kOps = 2 * kLanes;
  Vf one = splat(1.0f), small = splat(1e-30f);
  LEGATO_INLINE Acc step(Acc acc) { return fma(acc, one, small); }
  static LEGATO_INLINE Vf value(Acc acc) { return acc; }
};

#if defined(LEGATO_ISA_avx512_bf16)
struct PeakBf16 {
  using Acc = Vf;
  static constexpr int32_t kOps = 4 * kLanes;
  __m512bh line = reinterpret_cast<__m512bh>(splat_int(0x3c003c00));
  LEGATO_INLINE Acc step(Acc acc) { return DotBf16::mac(acc, line, line); }
  static LEGATO_INLINE Vf value(Acc acc) { return acc; }
};
#else
using PeakBf16 = PeakF32;
#endif

#if defined(LEGATO_ISA_portable)
using PeakI8 = PeakF32;
#else
struct PeakI8 {
  using Acc = Ints;
  static constexpr int32_t kOps = 8 * kLanes / DotI8::kSubs;
  Shorts line = Shorts{} + uint16_t{0x0101};
  LEGATO_INLINE Acc step(Acc acc) {
    __asm__("" : "+v"(line));  // else the product, the same each time, leaves the loop
    return DotI8::mac(acc, line, line);
  }
  static LEGATO_INLINE Vf value(Acc acc) { return __builtin_convertvector(acc, Vf); }
};
#endif

template <class Peak>
double chains(int64_t rounds, float* out) {
  Peak peak;
  typename Peak::Acc acc[kChains] = {};
  for (int32_t c = 0; c < kChains; ++c) acc[c][0] = c;  // the compiler makes one chain of equal ones
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int32_t i = 0; i < kUnroll; ++i) {
#pragma GCC unroll 12
      for (int32_t c = 0; c < kChains; ++c) acc[c] = peak.step(acc[c]);
    }
  }
  Vf sum = zero();
#pragma GCC unroll 12
  for (int32_t c = 0; c < kChains; ++c) sum = sum + Peak::value(acc[c]);
  store(out, sum);
  return static_cast<double>(rounds) * kUnroll * kChains * Peak::kOps;
}

double multiply_adds(PeakKind kind, int64_t rounds, float* out) {
  switch (kind) {
    case PeakKind::bf16:
      return chains<PeakBf16>(rounds, out);
    case PeakKind::i8:
      return chains<PeakI8>(rounds, out);
    default:
      return chains<PeakF32>(rounds, out);
  }
}

void read(const float* data, size_t lines, float* out) {
  constexpr size_t kVectors = kReadLines * 16 / kLanes;
  Vf sums[kVectors] = {};
  for (size_t line = 0; line < lines; line += kReadLines) {
    const float* p = data + line * 16;
    __builtin_prefetch(p + 1024);
#pragma GCC unroll 64
    for (size_t v = 0; v < kVectors; ++v) sums[v] = sums[v] + load(p + v * kLanes);
  }
  Vf sum = zero();
#pragma GCC unroll 64
  for (size_t v = 0; v < kVectors; ++v) sum = sum + sums[v];
  store(out, sum);
}

}  // namespace

extern const MachineTable kMachine;
const MachineTable kMachine = {multiply_adds, read};

}  // namespace LEGATO_ISA_NS
}  // namespace legato
