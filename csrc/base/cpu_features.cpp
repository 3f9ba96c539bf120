#include "base/cpu_features.h"

#include <array>
#include <stdexcept>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace legato {
namespace {

#if defined(__x86_64__)

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// All zero where the CPU does not have the leaf.
Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return Registers{};
  return r;
}

// The register state that the operating system saves; 0 where it does not use XSAVE.
unsigned saved_state() {
  constexpr unsigned kOsxsave = 1u << 27;
  if ((cpuid(1, 0).ecx & kOsxsave) == 0) return 0;
  unsigned eax, edx;
  __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return eax;
}

struct Feature {
  Isa level;  // the lowest level that needs it
  bool present;
  const char* reason;
};

const char* x86_obstacle(Isa isa) {
  const Registers basic = cpuid(1, 0), extended = cpuid(7, 0), more = cpuid(7, 1);
  const unsigned state = saved_state();
  constexpr unsigned kYmm = 0x6, kZmm = 0xe6;  // XMM and YMM; and opmask and both ZMM parts
  const Feature features[] = {
      {Isa::avx2, (basic.ecx >> 28 & 1) != 0, "the CPU lacks AVX"},
      {Isa::avx2, (extended.ebx >> 5 & 1) != 0, "the CPU lacks AVX2"},
      {Isa::avx2, (basic.ecx >> 12 & 1) != 0, "the CPU lacks FMA"},
      {Isa::avx2, (basic.ecx >> 29 & 1) != 0, "the CPU lacks F16C"},
      {Isa::avx2, (state & kYmm) == kYmm, "the operating system does not save AVX registers"},
      {Isa::avx512, (extended.ebx >> 16 & 1) != 0, "the CPU lacks AVX512F"},
      {Isa::avx512, (extended.ebx >> 17 & 1) != 0, "the CPU lacks AVX512DQ"},
      {Isa::avx512, (extended.ebx >> 30 & 1) != 0, "the CPU lacks AVX512BW"},
      {Isa::avx512, (extended.ebx >> 31 & 1) != 0, "the CPU lacks AVX512VL"},
      {Isa::avx512, (state & kZmm) == kZmm, "the operating system does not save AVX-512 registers"},
      {Isa::avx512_vnni, (extended.ecx >> 11 & 1) != 0, "the CPU lacks AVX512_VNNI"},
      {Isa::avx512_bf16, (more.eax >> 5 & 1) != 0, "the CPU lacks AVX512_BF16"},
  };
  for (const Feature& f : features) {
    if (f.level <= isa && !f.present) return f.reason;
  }
  // Higher levels do without it: AVX512_VNNI is older.
  if (isa == Isa::avx2_vnni && (more.eax >> 4 & 1) == 0) return "the CPU lacks AVX_VNNI";
  return nullptr;
}

// Intel's cores run vdpbf16ps at half the rate of the two FMAs whose bits it gives, so avx512_vnni has the same results
// sooner (docs/decisions.md; `legato bench machine` measures both).
bool slow_bf16_dot() {
  const Registers r = cpuid(0, 0);
  return r.ebx == signature_INTEL_ebx && r.ecx == signature_INTEL_ecx && r.edx == signature_INTEL_edx;
}

#else

bool slow_bf16_dot() { return false; }

#endif

const char* obstacle_to(Isa isa) {
  if (isa == Isa::portable) return nullptr;
#if defined(__x86_64__)
  return x86_obstacle(isa);
#else
  return "this is not an x86-64 CPU";
#endif
}

// Each question to the CPU costs a virtual machine tens of microseconds: they are asked once.
struct Findings {
  std::array<const char*, kIsaCount> obstacles;
  bool slow_bf16 = slow_bf16_dot();

  Findings() {
    for (int32_t i = 0; i < kIsaCount; ++i) obstacles[static_cast<size_t>(i)] = obstacle_to(static_cast<Isa>(i));
  }
};

const Findings& findings() {
  static const Findings found;
  return found;
}

Isa isa_from_name(const std::string& name) {
  if (name == "vnni") return Isa::avx512_vnni;
  if (name == "bf16") return Isa::avx512_bf16;
  for (int32_t i = 0; i < kIsaCount; ++i) {
    if (name == isa_name(static_cast<Isa>(i))) return static_cast<Isa>(i);
  }
  throw std::invalid_argument("unknown ISA level '" + name +
                              "'; known: portable, avx2, avx2_vnni, avx512, avx512_vnni (vnni), avx512_bf16 (bf16)");
}

}  // namespace

const char* isa_name(Isa isa) {
  static constexpr const char* kNames[kIsaCount] = {"portable", "avx2",        "avx2_vnni",
                                                    "avx512",   "avx512_vnni", "avx512_bf16"};
  return kNames[static_cast<int32_t>(isa)];
}

const char* isa_obstacle(Isa isa) { return findings().obstacles[static_cast<size_t>(isa)]; }

Isa choose_isa(const char* forced) {
  if (forced != nullptr && *forced != '\0') {
    const Isa isa = isa_from_name(forced);
    const char* obstacle = isa_obstacle(isa);
    if (obstacle == nullptr) return isa;
    throw std::invalid_argument("ISA level '" + std::string(forced) + "' cannot be used here: " + obstacle);
  }
  int32_t best = kIsaCount - 1;
  while (isa_obstacle(static_cast<Isa>(best)) != nullptr) --best;  // portable has no obstacle
  const Isa isa = static_cast<Isa>(best);
  return isa == Isa::avx512_bf16 && findings().slow_bf16 ? Isa::avx512_vnni : isa;
}

}  // namespace legato
