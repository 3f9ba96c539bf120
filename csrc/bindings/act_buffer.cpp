#include "bindings/act_buffer.h"

#include <nanobind/nanobind.h>

namespace legato {

ActBuffer::ActBuffer(const std::string& format, int32_t rows, int32_t k, const KernelTable& kernels) : rows_(rows) {
  if (rows <= 0 || k <= 0) throw nanobind::value_error("activations need at least one row and one column");
  if (format == "f32") {
    acts_.type = ActType::f32;
  } else if (format == "bf16") {
    acts_.type = ActType::bf16;
  } else if (format == "s8g32" || format == "s8g64") {
    acts_.type = ActType::s8;
    acts_.group = format == "s8g32" ? 32 : 64;
  } else {
    throw nanobind::value_error(("unknown activation format: " + format).c_str());
  }
  acts_.k = k;
  acts_.k_pad = static_cast<int32_t>(round_up(static_cast<size_t>(k), 64));
  value_bytes_ = legato::value_bytes(kernels, acts_.type);
  // As the workspace of a model has them.
  data_ = AlignedBuffer(static_cast<size_t>(rows) * static_cast<size_t>(acts_.k_pad) * value_bytes_, Pages::huge);
  acts_.data = data_.data();
  if (acts_.type != ActType::s8) return;
  const size_t group_values = static_cast<size_t>(rows) * static_cast<size_t>(groups());
  scales_ = AlignedBuffer(group_values * sizeof(float));
  sums_ = AlignedBuffer(group_values * sizeof(int32_t));
  acts_.scales = scales_.as<float>();
  acts_.sums = sums_.as<int32_t>();
}

const Acts& ActBuffer::view(const KernelTable& kernels) const {
  if (legato::value_bytes(kernels, acts_.type) != value_bytes_)
    throw nanobind::value_error("these activations were made for another ISA level");
  return acts_;
}

}  // namespace legato
