// The weight packer: checkpoint rows in, packed panels out.
#include "kernels/pack.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/names.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace legato {
namespace {

using ByteRows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Source = std::pair<std::string, ByteRows>;

size_t total_bytes(const Weight& w) { return w.panel_bytes * static_cast<size_t>(w.n_pad / kPanel); }

Weight describe(const std::string& type, int32_t n, int32_t k, int32_t group, int32_t zero, bool has_min) {
  Weight w;
  if (describe_weight(weight_type(type), n, k, group, zero, has_min ? 1 : 0, &w) == 0) {
    throw nb::value_error(("no packed layout for type " + type + ", n " + std::to_string(n) + ", k " +
                           std::to_string(k) + ", group " + std::to_string(group))
                              .c_str());
  }
  return w;
}

std::vector<SourceRow> rows_of(const Source& source, int32_t k) {
  const TableType type = table_type(source.first);
  const size_t bytes = source_row_bytes(type, k);
  if (bytes == 0 || source.second.shape(1) != bytes) throw nb::value_error("rows of a source have the wrong size");
  std::vector<SourceRow> rows(source.second.shape(0));
  for (size_t r = 0; r < rows.size(); ++r) rows[r] = {type, source.second.data() + r * bytes};
  return rows;
}

// All sources after each other, or two whose 64-row panels alternate (padded with null rows).
std::vector<SourceRow> columns_of(const std::vector<Source>& sources, int32_t k, bool interleave) {
  std::vector<SourceRow> columns;
  if (!interleave) {
    for (const Source& source : sources) {
      const std::vector<SourceRow> rows = rows_of(source, k);
      columns.insert(columns.end(), rows.begin(), rows.end());
    }
    return columns;
  }
  if (sources.size() != 2 || sources[0].second.shape(0) != sources[1].second.shape(0))
    throw nb::value_error("interleaving takes two sources with as many rows each");
  const std::vector<SourceRow> gate = rows_of(sources[0], k);
  const std::vector<SourceRow> up = rows_of(sources[1], k);
  for (size_t begin = 0; begin < gate.size(); begin += kPanel) {
    for (const std::vector<SourceRow>* side : {&gate, &up}) {
      for (size_t r = begin; r < begin + kPanel; ++r)
        columns.push_back(r < side->size() ? (*side)[r] : SourceRow{TableType::f32, nullptr});
    }
  }
  return columns;
}

void pack(const Weight& w, const std::vector<Source>& sources, const OutBytes& out, bool interleave,
          int32_t panel_begin, int32_t panel_end) {
  if (out.shape(0) != total_bytes(w)) throw nb::value_error("out must have weight.bytes bytes");
  const int32_t panels = w.n_pad / kPanel;
  if (panel_end < 0) panel_end = panels;
  if (panel_begin < 0 || panel_begin > panel_end || panel_end > panels) throw nb::value_error("no such panels");
  const std::vector<SourceRow> columns = columns_of(sources, w.k, interleave);
  const PackArgs args = {columns.data(), static_cast<int32_t>(columns.size()), w.k};
  const char* error;
  {
    nb::gil_scoped_release release;
    error = pack_weight(args, w, panel_begin, panel_end, out.data());
  }
  if (error != nullptr) throw nb::value_error(error);
}

void dequantize(const std::string& source, const ByteRows& rows, const OutRows& out) {
  const int32_t k = static_cast<int32_t>(out.shape(1));
  const std::vector<SourceRow> all = rows_of({source, rows}, k);
  if (all.size() != out.shape(0)) throw nb::value_error("out must have as many rows as the source");
  nb::gil_scoped_release release;
  for (size_t r = 0; r < all.size(); ++r) dequantize_row(all[r].type, all[r].data, k, out.data() + r * out.shape(1));
}

void unpack(Weight w, const Bytes& packed, int32_t column_begin, const OutRows& out) {
  if (packed.shape(0) != total_bytes(w)) throw nb::value_error("packed must have weight.bytes bytes");
  const int32_t column_end = column_begin + static_cast<int32_t>(out.shape(0));
  if (column_begin < 0 || column_end > w.n_pad || out.shape(1) != static_cast<size_t>(w.k))
    throw nb::value_error("out must be (columns, k), within the packed columns");
  w.panels = packed.data();
  nb::gil_scoped_release release;
  for (int32_t c = column_begin; c < column_end; ++c)
    unpack_column(w, c, out.data() + static_cast<size_t>(c - column_begin) * out.shape(1));
}

}  // namespace

void bind_pack(nb::module_& m) {
  nb::class_<Weight>(m, "Weight", "Shape and layout of a packed weight (csrc/kernels/pack.h)")
      .def_prop_ro("type", [](const Weight& w) { return weight_type_name(w.type); })
      .def_ro("n", &Weight::n)
      .def_ro("k", &Weight::k)
      .def_ro("n_pad", &Weight::n_pad)
      .def_ro("k_pad", &Weight::k_pad)
      .def_ro("group", &Weight::group)
      .def_ro("zero", &Weight::zero)
      .def_prop_ro("has_min", [](const Weight& w) { return w.has_min != 0; })
      .def_prop_ro("layout", &layout_id, "Layout id")
      .def_ro("panel_bytes", &Weight::panel_bytes)
      .def_prop_ro("panels", [](const Weight& w) { return w.n_pad / kPanel; })
      .def_prop_ro("bytes", &total_bytes);
  m.def("describe_weight", &describe, "type"_a, "n"_a, "k"_a, "group"_a = 0, "zero"_a = 0, "has_min"_a = false,
        "The packed form of an (n, k) weight of type f32, f16, bf16, i8, q4 or i4. ValueError where there is none.");
  m.def("pack_weight", &pack, "weight"_a, "sources"_a, "out"_a, "interleave"_a = false, "panel_begin"_a = 0,
        "panel_end"_a = -1,
        "Packs panels [panel_begin, panel_end) into `out` (all panels' bytes; the others are not touched). Sources are "
        "(dtype, uint8 rows) pairs, concatenated, or with `interleave` two whose 64-row panels alternate, each padded "
        "to whole panels. Releases the GIL. ValueError says what cannot be packed.");
  m.def("dequantize", &dequantize, "source"_a, "rows"_a, "out"_a, "Exact f32 values of checkpoint rows, (rows, k).");
  m.def("unpack_columns", &unpack, "weight"_a, "packed"_a, "column_begin"_a, "out"_a,
        "f32 values of packed output columns, (columns, k).");
}

}  // namespace legato
