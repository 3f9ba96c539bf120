// An array whose neighbourhood is watched: under the address sanitizer an exact allocation, else guard bytes that must
// not change. Filled with 0xff, so that whatever a kernel leaves out or reads too early is a NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "tests/check.h"

namespace legato {

template <class T>
class Guarded {
 public:
  explicit Guarded(size_t count) : count_(count), bytes_(new uint8_t[count * sizeof(T) + 2 * kGuard]) {
    std::memset(bytes_.get(), kGuardByte, count * sizeof(T) + 2 * kGuard);
    std::memset(data(), 0xff, count * sizeof(T));
  }
  ~Guarded() {
    const uint8_t* after = bytes_.get() + kGuard + count_ * sizeof(T);
    for (size_t i = 0; i < kGuard; ++i) CHECK(bytes_[i] == kGuardByte && after[i] == kGuardByte);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  T* data() { return reinterpret_cast<T*>(bytes_.get() + kGuard); }
  T& operator[](size_t i) { return data()[i]; }
  size_t size() const { return count_; }

 private:
#if defined(__SANITIZE_ADDRESS__)
  static constexpr size_t kGuard = 0;
#else
  static constexpr size_t kGuard = 64;
#endif
  static constexpr uint8_t kGuardByte = 0xa5;
  size_t count_;
  std::unique_ptr<uint8_t[]> bytes_;
};

}  // namespace legato
