#include "bindings/arrays.h"

#include "base/cpu_features.h"

namespace legato {

const KernelTable& kernels(const std::string& isa) {
  const KernelTable* table = kernel_table(choose_isa(isa.c_str()));
  require(table != nullptr, "this ISA level was not compiled in");
  return *table;
}

void require(bool condition, const char* message) {
  if (!condition) throw nanobind::value_error(message);
}

const float* values_or_null(const OptionalVector& array, int64_t length, const char* message) {
  if (!array) return nullptr;
  require(static_cast<int64_t>(array->shape(0)) == length, message);
  return array->data();
}

}  // namespace legato
