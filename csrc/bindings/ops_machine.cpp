// Measured limits of the machine: multiply-adds per second, and bytes read per second.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "base/aligned.h"
#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "bindings/bindings.h"
#include "kernels/machine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace legato {
namespace {

const MachineTable& table(const std::string& isa) { return *machine_table(choose_isa(isa.c_str())); }

PeakKind peak_kind(const std::string& name) {
  if (name == "f32") return PeakKind::f32;
  if (name == "bf16") return PeakKind::bf16;
  if (name == "int8") return PeakKind::i8;
  throw nb::value_error("kind must be f32, bf16 or int8");
}

// Best rate of passes, over at least `min_seconds`: pass(thread, number of the pass) returns the amount it did. Passes
// are short, so that some fall between the turns of other processes.
template <class Pass>
double best_rate(int threads, double min_seconds, Pass&& pass) {
  using Clock = std::chrono::steady_clock;
  ThreadPool pool(threads);
  std::vector<double> amounts(static_cast<size_t>(threads));
  double best = 0, total = 0;
  size_t number = 0;
  do {
    const Clock::time_point start = Clock::now();
    pool.run(threads,
             [&](int64_t item, int) { amounts[static_cast<size_t>(item)] = pass(static_cast<size_t>(item), number); });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    double amount = 0;
    for (const double each : amounts) amount += each;
    best = amount / seconds > best ? amount / seconds : best;
    total += seconds;
    ++number;
  } while (total < min_seconds);
  return best;
}

double peak(const std::string& kind_name, int threads, const std::string& isa, double min_seconds) {
  constexpr int64_t kRounds = 20000;  // some milliseconds
  const PeakKind kind = peak_kind(kind_name);
  const MachineTable& machine = table(isa);
  if (threads < 1) throw nb::value_error("threads must be at least 1");
  nb::gil_scoped_release release;
  return best_rate(threads, min_seconds, [&](size_t, size_t) {
    alignas(kAlignment) float sink[kMachineFloats];
    return machine.multiply_adds(kind, kRounds, sink);
  });
}

double read_bandwidth(int threads, size_t bytes, const std::string& isa, double min_seconds) {
  const MachineTable& machine = table(isa);
  if (threads < 1) throw nb::value_error("threads must be at least 1");
  constexpr size_t kParts = 16;  // a pass reads one of them; the next pass the next, which no cache holds by then
  const size_t count = static_cast<size_t>(threads);
  const size_t lines = bytes / kAlignment / count / kParts / kReadLines * kReadLines;  // of one thread in one pass
  if (lines == 0) throw nb::value_error("bytes must be at least 4 KiB per thread");
  const size_t share = lines * kAlignment;
  AlignedBuffer data(share * count * kParts, Pages::huge);
  std::memset(data.data(), 1, data.size());  // else all pages are the one of zeros
  nb::gil_scoped_release release;
  return best_rate(threads, min_seconds, [&](size_t item, size_t number) {
    alignas(kAlignment) float sink[kMachineFloats];
    const std::byte* part = data.data() + (number % kParts * count + item) * share;
    machine.read(reinterpret_cast<const float*>(part), lines, sink);
    return static_cast<double>(share);
  });
}

}  // namespace

void bind_ops_machine(nb::module_& m) {
  m.def("peak", &peak, "kind"_a, "threads"_a = 1, "isa"_a = "", "min_seconds"_a = 0.2,
        "Operations per second of f32, bf16 or int8 multiply-adds on registers (two for each), all threads together.");
  m.def("read_bandwidth", &read_bandwidth, "threads"_a = 1, "bytes"_a = size_t{1} << 28, "isa"_a = "",
        "min_seconds"_a = 0.2, "Bytes per second read from a buffer of `bytes`, shared out over the threads.");
}

}  // namespace legato
