// Row kernels, attention and sampler on numpy arrays.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "base/cpu_features.h"
#include "bindings/bindings.h"

namespace nb = nanobind;

namespace legato {

void bind_ops_rows(nb::module_& m) {
  m.def(
      "isa_levels",
      [] {
        nb::dict levels;
        for (int32_t i = 0; i < kIsaCount; ++i) {
          const char* obstacle = isa_obstacle(static_cast<Isa>(i));
          levels[isa_name(static_cast<Isa>(i))] = obstacle != nullptr ? nb::cast(obstacle) : nb::none();
        }
        return levels;
      },
      "Level name to None where it can be used here, else the reason why not.");
  m.def(
      "choose_isa",
      [](const std::optional<std::string>& forced) {
        return isa_name(choose_isa(forced ? forced->c_str() : nullptr));
      },
      nb::arg("forced") = nb::none(), "The best usable level, or the forced one. ValueError where it cannot be used.");
}

}  // namespace legato
