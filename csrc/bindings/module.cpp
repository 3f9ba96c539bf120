// The extension module: thin, no logic.
#include <nanobind/nanobind.h>

#include "bindings/bindings.h"

namespace nb = nanobind;

NB_MODULE(_native, m) {
  m.doc() = "Native runtime of Legato";
  legato::bind_pack(m);
  nb::module_ ops = m.def_submodule("ops", "Single kernels on numpy arrays, for tests and benchmarks");
  legato::bind_ops_rows(ops);
  legato::bind_ops_linear(ops);
  legato::bind_ops_machine(ops);
  legato::bind_engine(m);
}
