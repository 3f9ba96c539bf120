#include "base/aligned.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace legato {

AlignedBuffer::AlignedBuffer(size_t bytes, Pages pages) : size_(bytes) {
  if (bytes == 0) return;
  if (pages == Pages::normal) {
    data_ = static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kAlignment}));
    std::memset(data_, 0, bytes);
    return;
  }
  constexpr size_t kHugePage = size_t{2} << 20;
  if (bytes > SIZE_MAX - 2 * kHugePage) throw std::bad_alloc();
  mapping_size_ = round_up(bytes, kHugePage) + kHugePage;
  mapping_ = ::mmap(nullptr, mapping_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  data_ = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<uintptr_t>(mapping_), kHugePage));
  ::madvise(data_, round_up(bytes, kHugePage), MADV_HUGEPAGE);  // advice: a kernel without huge pages may decline
}

AlignedBuffer::~AlignedBuffer() {
  if (mapping_ != nullptr) {
    ::munmap(mapping_, mapping_size_);
  } else if (data_ != nullptr) {
    ::operator delete(data_, std::align_val_t{kAlignment});
  }
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept { *this = std::move(other); }

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_size_, other.mapping_size_);
  return *this;
}

}  // namespace legato
