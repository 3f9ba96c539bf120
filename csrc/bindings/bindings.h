// The parts of the extension module. Each function adds its own names to the module it is given.
#pragma once

#include <nanobind/nanobind.h>

namespace legato {

void bind_pack(nanobind::module_& m);         // _native: the weight packer
void bind_ops_rows(nanobind::module_& m);     // _native.ops: row kernels, attention, sampler (for tests and benches)
void bind_ops_linear(nanobind::module_& m);   // _native.ops: matrix products (for tests and benches)
void bind_ops_machine(nanobind::module_& m);  // _native.ops: what the machine can do at best
void bind_engine(nanobind::module_& m);       // _native: engine files and the plan runner

}  // namespace legato
