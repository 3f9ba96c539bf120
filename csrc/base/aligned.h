// Owned memory for kernels: 64-byte aligned, zeroed.
#pragma once

#include <cstddef>

namespace legato {

constexpr size_t kAlignment = 64;

constexpr size_t round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// `normal` comes from the heap. `huge` is its own mapping, aligned to 2 MiB and advised to use huge pages; its pages
// are only taken from the system when they are first touched.
enum class Pages { normal, huge };

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  // std::bad_alloc where the system refuses.
  explicit AlignedBuffer(size_t bytes, Pages pages = Pages::normal);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  size_t size() const { return size_; }
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  void* mapping_ = nullptr;  // huge only
  size_t mapping_size_ = 0;
};

}  // namespace legato
