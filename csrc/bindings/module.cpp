// The extension module: thin, no logic.
#include "bindings/bindings.h"

#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_native, m) {
  m.doc() = "Native runtime of Legato";
  legato::bind_pack(m);
  nb::module_ ops = m.def_submodule("ops", "Single kernels on numpy arrays, for tests and benchmarks");
  legato::bind_ops_rows(ops);
#ifdef LEGATO_HAS_OPS_LINEAR
  legato::bind_ops_linear(ops);
#endif
#ifdef LEGATO_HAS_ENGINE
  legato::bind_engine(m);
#endif
}
