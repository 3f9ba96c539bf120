// ISA levels, and the row kernels on numpy arrays.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "base/cpu_features.h"
#include "base/float_mode.h"
#include "bindings/act_buffer.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/names.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace legato {
namespace {

nb::dict isa_levels() {
  nb::dict levels;
  for (int32_t i = 0; i < kIsaCount; ++i) {
    const char* obstacle = isa_obstacle(static_cast<Isa>(i));
    levels[isa_name(static_cast<Isa>(i))] = obstacle != nullptr ? nb::cast(obstacle) : nb::none();
  }
  return levels;
}

int32_t rows_of(const Matrix& x) { return static_cast<int32_t>(x.shape(0)); }
int32_t columns_of(const Matrix& x) { return static_cast<int32_t>(x.shape(1)); }

void embed(const std::string& isa, const std::string& dtype, const Array<const uint8_t, 2>& table,
           const Array<const int32_t, 1>& tokens, float scale, const OutMatrix& out) {
  EmbedArgs a{};
  a.type = table_type(dtype);
  a.table = table.data();
  a.row_bytes = static_cast<int64_t>(table.shape(1));
  a.width = static_cast<int32_t>(out.shape(1));
  a.scale = scale;
  a.tokens = tokens.data();
  a.out = out.data();
  a.out_stride = a.width;
  require(out.shape(0) == tokens.shape(0), "out needs one row per token");
  const FlushDenormals mode;
  kernels(isa).embed(a, 0, static_cast<int32_t>(tokens.shape(0)));
}

void norm(const std::string& isa, const Matrix& x, const Vector& weight, const OptionalVector& bias, bool layer,
          float eps, const ActBuffer* acts, const std::optional<OutMatrix>& out) {
  NormArgs a{};
  a.x = x.data();
  a.x_stride = a.width = columns_of(x);
  a.layer = layer ? 1 : 0;
  a.eps = eps;
  require(static_cast<int32_t>(weight.shape(0)) == a.width, "weight has the wrong length");
  a.weight = weight.data();
  a.bias = values_or_null(bias, a.width, "bias has the wrong length");
  require((acts != nullptr) != out.has_value(), "give one of acts and out");
  if (out) {
    require(out->shape(0) == x.shape(0) && out->shape(1) == x.shape(1), "out has the wrong shape");
    a.out = out->data();
    a.out_stride = a.width;
  } else {
    require(acts->rows() == rows_of(x) && acts->view().k == a.width, "acts has the wrong shape");
    a.acts = acts->view(kernels(isa));
  }
  const FlushDenormals mode;
  kernels(isa).norm(a, 0, rows_of(x));
}

void quantize(const std::string& isa, const Matrix& x, const ActBuffer& acts) {
  require(acts.rows() == rows_of(x) && acts.view().k == columns_of(x), "acts has the wrong shape");
  const FlushDenormals mode;
  kernels(isa).quantize({x.data(), columns_of(x), acts.view(kernels(isa))}, 0, rows_of(x));
}

void find_faults(const std::string& isa, const Matrix& x, const Array<uint8_t, 1>& faults) {
  require(faults.shape(0) == x.shape(0), "faults needs one entry per row");
  kernels(isa).find_faults(x.data(), columns_of(x), columns_of(x), rows_of(x), faults.data());
}

}  // namespace

void bind_ops_rows(nb::module_& m) {
  m.def("isa_levels", &isa_levels, "Level name to None where it can be used here, else the reason why not.");
  m.def(
      "choose_isa",
      [](const std::optional<std::string>& forced) { return isa_name(choose_isa(forced ? forced->c_str() : nullptr)); },
      "forced"_a = nb::none(), "The best usable level, or the forced one. ValueError where it cannot be used.");
  m.def("embed", &embed, "isa"_a, "dtype"_a, "table"_a, "tokens"_a, "scale"_a, "out"_a,
        "out[r] = table[tokens[r]] * scale; table: uint8 [rows, bytes per row].");
  m.def("norm", &norm, "isa"_a, "x"_a, "weight"_a, "bias"_a, "layer"_a, "eps"_a, "acts"_a = nb::none(),
        "out"_a = nb::none(), "RMS norm, or layer norm, of each row of x into `acts` or `out` (float32).");
  m.def("quantize", &quantize, "isa"_a, "x"_a, "acts"_a, "Rows of x into `acts`.");
  m.def("find_faults", &find_faults, "isa"_a, "x"_a, "faults"_a, "faults[r] = 1 where row r holds NaN or Inf, else 0.");
  bind_ops_attention(m);
  bind_ops_attention_bench(m);
  bind_ops_sample(m);
}

}  // namespace legato
