// Rows of activations that own their memory, for tests and benchmarks: `ops.Acts` in Python.
#pragma once

#include <cstdint>
#include <string>

#include "base/aligned.h"
#include "kernels/kernels.h"

namespace legato {

class ActBuffer {
 public:
  // format: f32, bf16, s8g32 or s8g64. All zero. ValueError for another format or an empty shape.
  ActBuffer(const std::string& format, int32_t rows, int32_t k, const KernelTable& kernels);

  int32_t rows() const { return rows_; }
  int32_t groups() const { return acts_.type == ActType::s8 ? acts_.k_pad / acts_.group : 0; }
  const Acts& view() const { return acts_; }
  // For kernels of this table. ValueError if they store such values in another way.
  const Acts& view(const KernelTable& kernels) const;
  size_t value_bytes() const { return value_bytes_; }

 private:
  int32_t rows_;
  size_t value_bytes_;
  Acts acts_ = {};
  AlignedBuffer data_;
  AlignedBuffer scales_;
  AlignedBuffer sums_;
};

}  // namespace legato
