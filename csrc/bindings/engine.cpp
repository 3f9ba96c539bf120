// Engine files and the plan runner. Columns of a step plan are read in place through the buffer protocol.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/start_thread.h"
#include "bindings/bindings.h"
#include "bindings/names.h"
#include "runtime/runtime.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace legato {
namespace {

// A Python buffer held while a step uses it. Without the GIL it must not be copied or dropped.
class HeldBuffer {
 public:
  // `format`: accepted struct codes. TypeError names the column.
  HeldBuffer(nb::handle object, const std::string& column, const char* formats, size_t item) {
    const std::string complaint = "step plan: " + column + ": is not a flat array of the right type";
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
      PyErr_Clear();
      throw nb::type_error(complaint.c_str());
    }
    const char* format = view_.format != nullptr ? view_.format : "B";
    const bool known = format[0] != 0 && format[1] == 0 && std::string(formats).find(format[0]) != std::string::npos;
    if (view_.ndim != 1 || !known || static_cast<size_t>(view_.itemsize) != item) {
      PyBuffer_Release(&view_);
      throw nb::type_error(complaint.c_str());
    }
  }
  ~HeldBuffer() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  HeldBuffer(HeldBuffer&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
  HeldBuffer(const HeldBuffer&) = delete;

  template <class T>
  std::span<const T> span() const {
    return {static_cast<const T*>(view_.buf), static_cast<size_t>(view_.len) / sizeof(T)};
  }

 private:
  Py_buffer view_;
};

// Reads a legato.core.types.StepPlan; `held` keeps its columns alive.
class PlanReader {
 public:
  PlanReader(nb::handle plan, std::vector<HeldBuffer>& held) : plan_(plan), held_(held) {}

  StepInput read() {
    StepInput step;
    step.step_id = get<int64_t>(plan_, "step_id");
    step.tokens = ints(plan_.attr("tokens"), "tokens");
    step.positions = ints(plan_.attr("positions"), "positions");
    for (nb::handle slots : plan_.attr("kv_slots")) step.kv_slots.push_back(column<int64_t>(slots, "kv_slots", "ql"));
    step.parents = ints(plan_.attr("parents"), "parents");
    step.row_offsets = ints(plan_.attr("row_offsets"), "row_offsets");
    step.seq_slots = ints(plan_.attr("seq_slots"), "seq_slots");
    for (nb::handle table : plan_.attr("block_tables")) {
      step.block_tables.push_back(
          {ints(table.attr("offsets"), "block_tables"), ints(table.attr("blocks"), "block_tables")});
    }
    step.adapters = ints(plan_.attr("adapters"), "adapters");
    step.out_rows = ints(plan_.attr("out_rows"), "out_rows");
    step.out_purposes = column<int8_t>(plan_.attr("out_purposes"), "out_purposes", "b");
    step.out_params = ints(plan_.attr("out_params"), "out_params");
    step.out_masks = ints(plan_.attr("out_masks"), "out_masks");
    step.out_targets = ints(plan_.attr("out_targets"), "out_targets");
    for (nb::handle mask : plan_.attr("masks")) step.masks.push_back(column<uint8_t>(mask, "masks", "B"));
    for (nb::handle reset : plan_.attr("resets")) step.resets.push_back(read_reset(reset));
    for (nb::handle copy : plan_.attr("copies")) step.copies.push_back(read_copy(copy));
    return step;
  }

 private:
  template <class T>
  std::span<const T> column(nb::handle object, const char* name, const char* formats) {
    held_.emplace_back(object, name, formats, sizeof(T));
    return held_.back().template span<T>();
  }
  std::span<const int32_t> ints(nb::handle object, const char* name) { return column<int32_t>(object, name, "i"); }

  template <class T>
  static T get(nb::handle object, const char* name) {
    try {
      return nb::cast<T>(object.attr(name));
    } catch (const nb::cast_error&) {
      throw nb::type_error((std::string("step plan: ") + name + ": has a wrong type").c_str());
    }
  }

  static SlotReset read_reset(nb::handle from) {
    SlotReset reset{};
    reset.slot = get<int32_t>(from, "slot");
    SlotParams& p = reset.params;
    p.temperature = get<float>(from, "temperature");
    p.top_p = get<float>(from, "top_p");
    p.top_k = get<int32_t>(from, "top_k");
    p.min_p = get<float>(from, "min_p");
    p.seed = PyLong_AsUnsignedLongLongMask(nb::object(from.attr("seed")).ptr());  // negative: two's complement
    if (PyErr_Occurred()) throw nb::python_error();
    p.choice = get<uint32_t>(from, "choice");
    p.repetition_penalty = get<float>(from, "repetition_penalty");
    p.presence_penalty = get<float>(from, "presence_penalty");
    p.frequency_penalty = get<float>(from, "frequency_penalty");
    p.num_logprobs = get<int32_t>(from, "num_logprobs");
    p.num_prompt_logprobs = get<int32_t>(from, "num_prompt_logprobs");
    p.min_position = get<int32_t>(from, "min_position");
    p.vocab_size = get<int32_t>(from, "vocab_size");
    p.end_token_ids = get<std::vector<int32_t>>(from, "end_token_ids");
    p.bias_token_ids = get<std::vector<int32_t>>(from, "bias_token_ids");
    p.bias_values = get<std::vector<float>>(from, "bias_values");
    p.allowed_token_ids = get<std::vector<int32_t>>(from, "allowed_token_ids");
    p.bad_words = get<std::vector<std::vector<int32_t>>>(from, "bad_words");
    p.logprob_token_ids = get<std::vector<int32_t>>(from, "logprob_token_ids");
    reset.prompt = get<std::vector<int32_t>>(from, "prompt");
    reset.output = get<std::vector<int32_t>>(from, "output");
    return reset;
  }

  static BlockCopy read_copy(nb::handle from) {
    return {get<int32_t>(from, "group"), get<int32_t>(from, "source_tier"), get<int32_t>(from, "source"),
            get<int32_t>(from, "target_tier"), get<int32_t>(from, "target")};
  }

  nb::handle plan_;
  std::vector<HeldBuffer>& held_;
};

template <class T>
nb::bytes as_bytes(const std::vector<T>& values) {
  return nb::bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

nb::tuple as_pairs(const std::vector<TopLogprobs>& rows) {
  nb::list result;
  for (const TopLogprobs& row : rows) {
    nb::list pairs;
    for (size_t i = 0; i < row.ids.size(); ++i) pairs.append(nb::make_tuple(row.ids[i], row.values[i]));
    result.append(nb::tuple(pairs));
  }
  return nb::tuple(result);
}

// What Python calls the runtime. One step at a time, as in Runtime. The GIL is kept where a block is read or replaced:
// no step begins meanwhile.
class PyRuntime {
 public:
  PyRuntime(const EngineFile& file, const RuntimeOptions& options) : runtime_(file, options) {}

  void launch(nb::handle plan) {
    std::vector<HeldBuffer> held;
    StepInput step = PlanReader(plan, held).read();
    runtime_.launch(std::move(step));
    held_ = std::move(held);
  }

  nb::dict collect(int64_t step_id) {
    StepOutput out;
    {
      const nb::gil_scoped_release release;
      out = runtime_.collect(step_id);
    }
    held_.clear();
    if (!out.error.empty()) throw std::runtime_error("step " + std::to_string(step_id) + " failed: " + out.error);
    nb::dict result;
    result["tokens"] = as_bytes(out.tokens);
    result["logprobs"] = as_bytes(out.logprobs);
    result["top_logprobs"] = as_pairs(out.top_logprobs);
    result["faults"] = as_bytes(out.faults);
    result["times_ms"] = nb::make_tuple(out.prepare_ns * 1e-6, out.forward_ns * 1e-6, out.sample_ns * 1e-6);
    return result;
  }

  nb::dict sample_again(nb::handle rows) {
    std::vector<HeldBuffer> held;
    std::vector<MaskedRow> asked;
    for (nb::handle row : rows) {
      held.emplace_back(row[3], "masks", "B", sizeof(uint8_t));
      asked.push_back({nb::cast<int32_t>(row[0]), nb::cast<int32_t>(row[1]), nb::cast<int32_t>(row[2]),
                       held.back().span<uint8_t>()});
    }
    StepOutput out;
    {
      const nb::gil_scoped_release release;
      out = runtime_.sample_again(asked);
    }
    nb::dict result;
    result["tokens"] = as_bytes(out.tokens);
    result["logprobs"] = as_bytes(out.logprobs);
    result["top_logprobs"] = as_pairs(out.top_logprobs);
    return result;
  }

  int32_t num_kept_logits() const { return runtime_.num_kept_logits(); }
  nb::bytes logits() const { return as_bytes(runtime_.logits()); }

  nb::bytes read_block(int32_t group, int32_t index) {
    const std::span<uint8_t> block = runtime_.kv_block(group, index);
    return nb::bytes(reinterpret_cast<const char*>(block.data()), block.size());
  }

  void write_block(int32_t group, int32_t index, const nb::bytes& data) {
    const std::span<uint8_t> block = runtime_.kv_block(group, index);
    if (data.size() != block.size()) throw std::invalid_argument("the data is not of a block's size");
    std::memcpy(block.data(), data.c_str(), block.size());
  }

  nb::dict profile() const {
    const Profile p = runtime_.profile();
    nb::dict result;
    result["steps"] = p.steps;
    result["rows"] = p.rows;
    result["prepare"] = p.prepare_ns;
    for (int32_t i = 0; i < kOpKinds; ++i) result[op_name(static_cast<OpKind>(i))] = p.op_ns[static_cast<size_t>(i)];
    result["sample"] = p.sample_ns;
    return result;
  }

  void reset_profile() { runtime_.reset_profile(); }

 private:
  // Declared first, released last: the runtime's thread reads the columns.
  std::vector<HeldBuffer> held_;
  Runtime runtime_;
};

RuntimeOptions make_options(const std::string& isa, const std::string& kv_dtype, int32_t block_size, int32_t num_blocks,
                            int32_t max_rows, int32_t max_seqs, int32_t max_position, int32_t threads, bool prefault) {
  return {choose_isa(isa.c_str()),
          kv_type(kv_dtype),
          block_size,
          num_blocks,
          max_rows,
          max_seqs,
          max_position,
          threads,
          prefault};
}

void check_bytes(const nb::bytes& data) {
  AlignedBuffer copy(data.size());
  std::memcpy(copy.data(), data.c_str(), data.size());
  EngineFile::parse({copy.as<uint8_t>(), data.size()});
}

nb::dict memory_dict(const EngineFile& file, const RuntimeOptions& options) {
  check_options(file, options);
  const MemoryNeed need = memory_need(file, options);
  nb::dict result;
  result["weights"] = need.weights;
  result["workspace"] = need.workspace;
  result["tables"] = need.tables;
  result["scratch"] = need.scratch;
  result["bytes_per_block"] = nb::tuple(nb::cast(need.bytes_per_block));
  return result;
}

}  // namespace

void bind_engine(nb::module_& m) {
  nb::exception<EngineFileError>(m, "EngineFileError", PyExc_ValueError);
  nb::exception<ThreadError>(m, "ThreadError", PyExc_RuntimeError);
  nb::class_<RuntimeOptions>(m, "RuntimeOptions", "Sizes that a runtime is made for")
      .def_static("make", &make_options, "isa"_a, "kv_dtype"_a, "block_size"_a, "num_blocks"_a, "max_rows"_a,
                  "max_seqs"_a, "max_position"_a, "threads"_a, "prefault_kv"_a = false)
      .def_prop_ro("isa", [](const RuntimeOptions& o) { return isa_name(o.isa); });
  nb::class_<EngineFile>(m, "EngineFile", "An engine file, mapped and checked")
      .def_static("open", &EngineFile::open, "path"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_static("check", &check_bytes, "data"_a,
                  "Parses a copy of these bytes: EngineFileError where they are not an engine file.")
      .def("memory", &memory_dict, "options"_a, "Bytes that a runtime of these sizes takes, by part.");
  nb::class_<PyRuntime>(m, "Runtime", "A loaded model; runs step plans on threads of its own")
      .def(
          "__init__",
          [](PyRuntime* self, const EngineFile& file, const RuntimeOptions& options) {
            const nb::gil_scoped_release release;
            new (self) PyRuntime(file, options);
          },
          "file"_a, "options"_a)
      .def("launch", &PyRuntime::launch, "plan"_a)
      .def("collect", &PyRuntime::collect, "step_id"_a)
      .def("sample_again", &PyRuntime::sample_again, "rows"_a,
           "Tokens of rows of the last step, with other masks. rows: (index among the kept logits, slot, position, "
           "mask).")
      .def("num_kept_logits", &PyRuntime::num_kept_logits,
           "Output rows of the last step whose logits are kept: its last.")
      .def("logits", &PyRuntime::logits, "float32 [output rows][vocab] of the last step")
      .def("read_block", &PyRuntime::read_block, "group"_a, "index"_a, "The bytes of a block, between steps.")
      .def("write_block", &PyRuntime::write_block, "group"_a, "index"_a, "data"_a,
           "Replaces the bytes of a block, between steps.")
      .def("profile", &PyRuntime::profile, "Nanoseconds by kind of op since the last reset, steps and rows.")
      .def("reset_profile", &PyRuntime::reset_profile);
}

}  // namespace legato
