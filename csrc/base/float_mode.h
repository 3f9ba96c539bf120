// Denormal floats are read and written as zero while an object of this class lives, on the thread that made it.
//
// The bf16 dot instructions always flush; with every thread in this mode all kernels agree, and denormals cost nothing.
#pragma once

#include <cstdint>

namespace legato {

class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(__builtin_ia32_stmxcsr()) {
    constexpr uint32_t kFlushToZero = 0x8000, kDenormalsAreZero = 0x40;
    __builtin_ia32_ldmxcsr(saved_ | kFlushToZero | kDenormalsAreZero);
  }
  ~FlushDenormals() { __builtin_ia32_ldmxcsr(saved_); }
#else
  FlushDenormals() = default;
  ~FlushDenormals() = default;
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  [[maybe_unused]] uint32_t saved_ = 0;
};

}  // namespace legato
