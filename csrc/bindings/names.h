// Enumerators by the names that Python uses. ValueError for an unknown name.
#pragma once

#include <string>

#include "kernels/kernels.h"

namespace legato {

WeightType weight_type(const std::string& name);  // f32 f16 bf16 i8 q4 i4
const char* weight_type_name(WeightType type);
TableType table_type(const std::string& name);        // F32 F16 BF16 Q8_0 Q4_0 Q4_1
Activation activation(const std::string& name);       // none silu gelu gelu_tanh relu
EpilogueKind epilogue_kind(const std::string& name);  // store add glu
KvType kv_type(const std::string& name);              // fp32 bf16 int8 fp8

}  // namespace legato
