#include "bindings/names.h"

#include <nanobind/nanobind.h>

#include <cstddef>

namespace legato {
namespace {

template <typename Enum, size_t N>
Enum find(const char* what, const char* const (&names)[N], const std::string& name) {
  for (size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
  }
  throw nanobind::value_error(("unknown " + std::string(what) + ": " + name).c_str());
}

// In the order of the enumerators.
constexpr const char* kWeightTypes[] = {"f32", "f16", "bf16", "i8", "q4", "i4"};
constexpr const char* kTableTypes[] = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"};
constexpr const char* kActivations[] = {"none", "silu", "gelu", "gelu_tanh", "relu"};
constexpr const char* kKvTypes[] = {"fp32", "bf16", "int8", "fp8"};
constexpr const char* kEpilogues[] = {"store", "add", "glu"};

}  // namespace

WeightType weight_type(const std::string& name) { return find<WeightType>("weight type", kWeightTypes, name); }

const char* weight_type_name(WeightType type) { return kWeightTypes[static_cast<size_t>(type)]; }

TableType table_type(const std::string& name) { return find<TableType>("source dtype", kTableTypes, name); }

Activation activation(const std::string& name) { return find<Activation>("activation", kActivations, name); }

KvType kv_type(const std::string& name) { return find<KvType>("KV dtype", kKvTypes, name); }

EpilogueKind epilogue_kind(const std::string& name) { return find<EpilogueKind>("epilogue", kEpilogues, name); }

}  // namespace legato
