// The sampler on numpy arrays.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "base/float_mode.h"
#include "bindings/arrays.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace legato {
namespace {

using Mask = std::optional<Array<const uint8_t, 1>>;

std::vector<int32_t> sample(const std::string& isa, const Vector& logits, const Vector& uniforms, float temperature,
                            int32_t top_k, float top_p, float min_p, const Mask& mask) {
  const KernelTable& table = kernels(isa);
  const size_t vocab = logits.shape(0);
  require(vocab > 0, "logits are empty");
  require(!mask || mask->shape(0) == (vocab + 7) / 8, "mask needs one bit per token");
  std::vector<int32_t> ids(vocab), tokens;
  std::vector<float> values(vocab);
  const FlushDenormals mode;
  for (size_t i = 0; i < uniforms.shape(0); ++i) {
    SampleArgs a{};
    a.logits = logits.data();
    a.vocab = static_cast<int32_t>(vocab);
    a.mask = mask ? mask->data() : nullptr;
    a.temperature = temperature;
    a.top_k = top_k;
    a.top_p = top_p;
    a.min_p = min_p;
    a.uniform = uniforms.data()[i];
    a.scratch_ids = ids.data();
    a.scratch_values = values.data();
    table.sample(a);
    tokens.push_back(a.token);
  }
  return tokens;
}

nb::tuple logprobs(const std::string& isa, const Vector& logits, int32_t token, int32_t count) {
  const int32_t vocab = static_cast<int32_t>(logits.shape(0));
  require(vocab > 0 && token < vocab, "token is not in the vocabulary");
  require(count >= 0 && count <= vocab, "count must be between 0 and the vocabulary's size");
  std::vector<int32_t> ids(static_cast<size_t>(count));
  std::vector<float> values(static_cast<size_t>(count));
  LogprobArgs a{logits.data(), vocab, token, count, 0.0f, ids.data(), values.data()};
  const FlushDenormals mode;
  kernels(isa).logprobs(a);
  return nb::make_tuple(a.logprob, ids, values);
}

}  // namespace

void bind_ops_sample(nb::module_& m) {
  m.def("sample", &sample, "isa"_a, "logits"_a, "uniforms"_a, "temperature"_a = 1.0f, "top_k"_a = 0, "top_p"_a = 1.0f,
        "min_p"_a = 0.0f, "mask"_a = nb::none(), "One token per uniform, from the same row of logits.");
  m.def("logprobs", &logprobs, "isa"_a, "logits"_a, "token"_a, "count"_a,
        "(log probability of token, ids of the `count` best, their log probabilities).");
}

}  // namespace legato
