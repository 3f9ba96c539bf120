// The extension module: thin, no logic.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_native, m) { m.doc() = "Native runtime of Legato"; }
