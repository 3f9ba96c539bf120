// Numpy arrays as the kernels see them. For `_native.ops` only.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/kernels.h"

namespace legato {

template <class T, int kDims>
using Array = nanobind::ndarray<T, nanobind::ndim<kDims>, nanobind::c_contig, nanobind::device::cpu>;
using Vector = Array<const float, 1>;
using Matrix = Array<const float, 2>;
using OutMatrix = Array<float, 2>;
using OptionalVector = std::optional<Vector>;

// The kernels of a level by name. ValueError where the level is unknown or cannot be used here.
const KernelTable& kernels(const std::string& isa);

// ValueError with `message` unless `condition` holds.
void require(bool condition, const char* message);

// The array's values, null for None. ValueError with `message` unless there are `length`.
const float* values_or_null(const OptionalVector& array, int64_t length, const char* message);

void bind_ops_attention(nanobind::module_& m);
void bind_ops_attention_bench(nanobind::module_& m);
void bind_ops_sample(nanobind::module_& m);

}  // namespace legato
