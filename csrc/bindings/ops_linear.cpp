// The matrix product kernels on numpy arrays.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/float_mode.h"
#include "base/thread_pool.h"
#include "bindings/act_buffer.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/names.h"
#include "bindings/timing.h"
#include "kernels/pack.h"
#include "runtime/split.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace legato {
namespace {

using Bytes = Array<const uint8_t, 1>;
using Range = std::optional<std::pair<int32_t, int32_t>>;

std::pair<int32_t, int32_t> checked(const Range& range, int32_t end, const char* what) {
  const auto [first, last] = range.value_or(std::pair{0, end});
  if (first < 0 || first > last || last > end) throw nb::value_error(what);
  return {first, last};
}

void check_outputs(const ActBuffer& x, const Epilogue& e, int32_t out_rows, int32_t out_columns, int32_t panels,
                   int32_t n) {
  if (out_rows != x.rows()) throw nb::value_error("the output must have as many rows as x");
  const int32_t needed = e.kind == EpilogueKind::glu ? panels * kPanel : e.out != nullptr ? n : panels * kPanel;
  if (out_columns < needed) throw nb::value_error("the output is too narrow");
  if (e.kind == EpilogueKind::add && e.out == nullptr) throw nb::value_error("add needs an f32 output");
}

void run_linear(Weight w, const Bytes& packed, const ActBuffer& x, const std::string& epilogue, const std::string& act,
                float scale, const OptionalVector& bias, const std::optional<OutMatrix>& out, const ActBuffer* out_acts,
                const std::string& isa, const Range& rows, const Range& panels) {
  if (packed.shape(0) != w.panel_bytes * static_cast<size_t>(w.n_pad / kPanel))
    throw nb::value_error("packed must have weight.bytes bytes");
  const KernelTable& table = kernels(isa);
  if (!linear_accepts(x.view(table), w)) throw nb::value_error("this weight does not take these activations");
  if (out.has_value() == (out_acts != nullptr)) throw nb::value_error("exactly one of out and out_acts is needed");
  w.panels = packed.data();

  Epilogue e = {epilogue_kind(epilogue),
                activation(act),
                scale,
                values_or_null(bias, w.n, "bias must have n values"),
                nullptr,
                0,
                {}};
  int32_t panel_count = w.n_pad / kPanel;
  if (e.kind == EpilogueKind::glu) {
    if (panel_count % 2 != 0) throw nb::value_error("glu needs pairs of panels");
    panel_count /= 2;
  }
  if (out) {
    e.out = out->data();
    e.out_stride = static_cast<int64_t>(out->shape(1));
    check_outputs(x, e, static_cast<int32_t>(out->shape(0)), static_cast<int32_t>(out->shape(1)), panel_count, w.n);
  } else {
    e.acts = out_acts->view(table);
    check_outputs(x, e, out_acts->rows(), e.acts.k_pad, panel_count, w.n);
  }
  const auto [row_begin, row_end] = checked(rows, x.rows(), "no such rows");
  const auto [panel_begin, panel_end] = checked(panels, panel_count, "no such panels");
  AlignedBuffer scratch(kLinearScratchBytes);
  nb::gil_scoped_release release;
  const FlushDenormals flush;
  table.linear({x.view(), w, e}, row_begin, row_end, panel_begin, panel_end, nullptr, scratch.data());
}

// Copies of one weight, so many that together they have `bytes` bytes: a step through them reads memory, not a cache.
struct Workload {
  std::vector<LinearArgs> copies;
  int32_t rows;
  int32_t panels;  // of one copy
  size_t panel_bytes;
};

// As Model runs them: each thread asks for the weights of the copy after its own, while it multiplies its last tiles
// and while it waits.
double time_call(const KernelTable& table, const Workload& work, int threads, double min_seconds) {
  ThreadPool pool(threads);
  std::vector<AlignedBuffer> scratch;
  for (int t = 0; t < threads; ++t) scratch.emplace_back(kLinearScratchBytes);
  const LinearSplit split(work.rows, work.panels, threads);
  const auto weights_of = [&](const LinearArgs& args, int thread) {
    const auto begin = static_cast<size_t>(split.first_panel(thread)) * work.panel_bytes;
    const auto end = static_cast<size_t>(split.first_panel(thread + 1)) * work.panel_bytes;
    return std::span(args.w.panels + begin, std::min(kAheadBytes, end - begin));
  };
  size_t at = 0;
  return best_seconds(min_seconds, [&] {
    const LinearArgs& args = work.copies[at];
    at = (at + 1) % work.copies.size();
    const LinearArgs& next = work.copies[at];
    for (int t = 0; t < threads; ++t) pool.ahead(t, weights_of(next, t));
    pool.run(split.items(), [&](int64_t item, int thread) {
      void* memory = scratch[static_cast<size_t>(thread)].data();
      const uint8_t* after = weights_of(next, thread).data();
      split.visit(item, [&](int32_t row_begin, int32_t row_end, int32_t panel_begin, int32_t panel_end, bool last) {
        table.linear(args, row_begin, row_end, panel_begin, panel_end, last ? after : nullptr, memory);
      });
    });
  });
}

double linear_bench(const Weight& shape, const std::string& act_format, int32_t m, const std::string& epilogue,
                    const std::string& act, const std::string& out_format, int threads, const std::string& isa,
                    size_t bytes, double min_seconds) {
  const KernelTable& table = kernels(isa);
  const ActBuffer x(act_format, m, shape.k, table);
  if (!linear_accepts(x.view(), shape)) throw nb::value_error("this weight does not take these activations");
  const EpilogueKind kind = epilogue_kind(epilogue);
  const int32_t panels = kind == EpilogueKind::glu ? shape.n_pad / kPanel / 2 : shape.n_pad / kPanel;
  const ActBuffer out(out_format, m, panels * kPanel, table);
  const size_t copy_bytes = shape.panel_bytes * static_cast<size_t>(shape.n_pad / kPanel);
  const size_t copies = bytes / copy_bytes + 1;
  AlignedBuffer weights(copies * copy_bytes, Pages::huge);
  std::memset(weights.data(), 0x3c, weights.size());  // ordinary small numbers in every format
  Workload work = {{}, m, panels, copy_bytes / static_cast<size_t>(panels)};
  for (size_t i = 0; i < copies; ++i) {
    Weight w = shape;
    w.panels = weights.as<uint8_t>() + i * copy_bytes;
    Epilogue e = {kind, activation(act), 1.0f, nullptr, nullptr, 0, out.view()};
    if (out.view().type == ActType::f32) {
      e.out = static_cast<float*>(out.view().data);
      e.out_stride = panels * kPanel;
    }
    work.copies.push_back({x.view(), w, e});
  }
  nb::gil_scoped_release release;
  return time_call(table, work, threads, min_seconds);
}

template <class T>
nb::ndarray<nb::numpy, T> array(nb::handle owner, void* data, int32_t rows, int32_t columns) {
  return nb::ndarray<nb::numpy, T>(data, {static_cast<size_t>(rows), static_cast<size_t>(columns)}, owner);
}

nb::object data_of(nb::handle_t<ActBuffer> self) {
  const ActBuffer& x = nb::cast<const ActBuffer&>(self);
  const Acts& a = x.view();
  if (x.value_bytes() == 4) return nb::cast(array<float>(self, a.data, x.rows(), a.k_pad));
  if (x.value_bytes() == 2) return nb::cast(array<uint16_t>(self, a.data, x.rows(), a.k_pad));
  return nb::cast(array<int8_t>(self, a.data, x.rows(), a.k_pad));
}

}  // namespace

void bind_ops_linear(nb::module_& m) {
  nb::class_<ActBuffer>(m, "Acts", "Rows of activations in a format of the plan (f32, bf16, s8g32, s8g64), zeroed")
      .def(
          "__init__",
          [](ActBuffer* self, const std::string& format, int32_t rows, int32_t k, const std::string& isa) {
            new (self) ActBuffer(format, rows, k, kernels(isa));
          },
          "format"_a, "rows"_a, "k"_a, "isa"_a = "")
      .def_prop_ro("data", &data_of, "(rows, k_pad): int8, or float32, or of bf16 its bits, as the level stores them")
      .def_prop_ro(
          "scales",
          [](nb::handle_t<ActBuffer> self) {
            const ActBuffer& x = nb::cast<const ActBuffer&>(self);
            return array<float>(self, x.view().scales, x.rows(), x.groups());
          },
          "s8: (rows, groups) float32")
      .def_prop_ro(
          "sums",
          [](nb::handle_t<ActBuffer> self) {
            const ActBuffer& x = nb::cast<const ActBuffer&>(self);
            return array<int32_t>(self, x.view().sums, x.rows(), x.groups());
          },
          "s8: (rows, groups) int32");
  m.def("linear", &run_linear, "weight"_a, "packed"_a, "x"_a, "epilogue"_a = "store", "act"_a = "none",
        "scale"_a = 1.0f, "bias"_a = nb::none(), "out"_a = nb::none(), "out_acts"_a = nb::none(), "isa"_a = "",
        "rows"_a = nb::none(), "panels"_a = nb::none(),
        "y = x W^T and its epilogue (kernels.h), over ranges of rows and of output panels. Writes `out` (f32) or "
        "`out_acts`.");
  m.def("linear_bench", &linear_bench, "weight"_a, "acts"_a, "m"_a, "epilogue"_a = "store", "act"_a = "none",
        "out"_a = "f32", "threads"_a = 1, "isa"_a = "", "bytes"_a = size_t{1} << 20, "min_seconds"_a = 0.2,
        "Best seconds of one call of m rows, on copies of the weight of `bytes` bytes together.");
}

}  // namespace legato
