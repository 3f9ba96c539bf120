#include "runtime/sampling.h"

#include <algorithm>

#include "runtime/philox.h"

namespace legato {
namespace {

void replace(SamplingScratch& scratch, std::span<float> logits, int32_t token, float value) {
  float& place = logits[static_cast<size_t>(token)];
  scratch.raw.emplace_back(token, place);
  place = value;
}

void penalize(const SamplingSlot& slot, std::span<float> logits, SamplingScratch& scratch) {
  const SlotParams& p = slot.params;
  for (const auto& [token, count] : slot.counts) {
    float value = logits[static_cast<size_t>(token)];
    if (p.repetition_penalty != 1.0f) {
      value = value > 0 ? value / p.repetition_penalty : value * p.repetition_penalty;
    }
    if (count > 0) {
      value -= p.presence_penalty;
      value -= p.frequency_penalty * static_cast<float>(count);
    }
    replace(scratch, logits, token, value);
  }
}

void add_bias(const SlotParams& p, std::span<float> logits, SamplingScratch& scratch) {
  for (size_t i = 0; i < p.bias_token_ids.size(); ++i) {
    const int32_t token = p.bias_token_ids[i];
    replace(scratch, logits, token, logits[static_cast<size_t>(token)] + p.bias_values[i]);
  }
}

// The step's mask, without what the slot does not allow.
const uint8_t* narrow(const SlotParams& p, const uint8_t* mask, SamplingScratch& scratch) {
  if (p.allowed_token_ids.empty()) return mask;
  std::fill(scratch.mask.begin(), scratch.mask.end(), uint8_t{0});
  for (int32_t token : p.allowed_token_ids) {
    const auto byte = static_cast<size_t>(token) / 8;
    const auto bit = static_cast<uint8_t>(1u << (token % 8));
    if (mask == nullptr || (mask[byte] & bit) != 0) scratch.mask[byte] |= bit;
  }
  return scratch.mask.data();
}

int32_t choose(const KernelTable& kernels, const SlotParams& p, int32_t position, std::span<float> logits,
               const uint8_t* mask, SamplingScratch& scratch) {
  SampleArgs args{};
  args.logits = logits.data();
  args.vocab = static_cast<int32_t>(logits.size());
  args.mask = mask;
  args.temperature = p.temperature;
  args.top_k = p.top_k;
  args.top_p = p.top_p;
  args.min_p = p.min_p;
  args.uniform = philox_uniform(p.seed, p.choice, static_cast<uint32_t>(position));
  args.scratch_ids = scratch.ids.data();
  args.scratch_values = scratch.values.data();
  kernels.sample(args);
  return args.token;
}

float logprobs(const KernelTable& kernels, std::span<const float> logits, int32_t token, TopLogprobs& top) {
  LogprobArgs args{};
  args.logits = logits.data();
  args.vocab = static_cast<int32_t>(logits.size());
  args.token = token;
  args.count = static_cast<int32_t>(top.ids.size());
  args.top_ids = top.ids.data();
  args.top_logprobs = top.values.data();
  kernels.logprobs(args);
  return args.logprob;
}

}  // namespace

void SamplingSlot::install(const SlotReset& reset) {
  params = reset.params;
  counts.clear();
  if (!params.has_penalties()) return;
  for (int32_t token : reset.prompt) counts.try_emplace(token, 0);
  for (int32_t token : reset.output) ++counts[token];
}

void SamplingSlot::count(int32_t token) {
  if (params.has_penalties()) ++counts[token];
}

SampledRow sample_row(const KernelTable& kernels, const SamplingSlot& slot, int32_t position, std::span<float> logits,
                      const uint8_t* mask, SamplingScratch& scratch, TopLogprobs& top) {
  const SlotParams& p = slot.params;
  const int32_t sampled = position + 1;
  scratch.raw.clear();
  if (p.has_penalties()) penalize(slot, logits, scratch);
  add_bias(p, logits, scratch);
  if (sampled < p.min_position) {
    for (int32_t token : p.end_token_ids) replace(scratch, logits, token, -std::numeric_limits<float>::infinity());
  }
  SampledRow row;
  row.token = choose(kernels, p, sampled, logits, narrow(p, mask, scratch), scratch);
  // Backwards: a token replaced twice gets its first value back.
  for (auto it = scratch.raw.rbegin(); it != scratch.raw.rend(); ++it)
    logits[static_cast<size_t>(it->first)] = it->second;
  if (row.token >= 0 && p.num_logprobs >= 0) row.logprob = logprobs(kernels, logits, row.token, top);
  return row;
}

}  // namespace legato
