// Denormal floats are read and written as zero while an object of this class lives, on the thread that made it.
//
// The bf16 dot instructions always flush; with every thread in this mode all kernels agree, and denormals cost nothing.
#pragma once

#include <cstdint>

namespace legato {

class FlushDenormals {
 public:
  FlushDenormals() : saved_(control()) { set_control(saved_ | kFlush); }
  ~FlushDenormals() { set_control(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint32_t kFlush = 0x8040;  // flush to zero, denormals are zero
  static uint32_t control() { return __builtin_ia32_stmxcsr(); }
  static void set_control(uint32_t value) { __builtin_ia32_ldmxcsr(value); }
  uint32_t saved_;
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = uint64_t{1} << 24;  // FZ: results and operands
  static uint64_t control() {
    uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_control(uint64_t value) { __asm__ volatile("msr fpcr, %0" : : "r"(value) : "memory"); }
  uint64_t saved_;
#else
#error "no way known to flush denormals on this CPU"
#endif
};

}  // namespace legato
