#include "runtime/sampling.h"

#include <algorithm>
#include <iterator>

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

void ban_bad_words(const SamplingSlot& slot, std::span<float> logits, SamplingScratch& scratch) {
  const std::vector<int32_t>& recent = slot.recent;
  for (const std::vector<int32_t>& word : slot.params.bad_words) {
    const auto begun = static_cast<std::ptrdiff_t>(word.size()) - 1;
    if (begun > std::ssize(recent) || !std::equal(word.begin(), word.end() - 1, recent.end() - begun)) continue;
    replace(scratch, logits, word.back(), -std::numeric_limits<float>::infinity());
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

int32_t choose(const KernelTable& kernels, const SlotParams& p, float uniform, std::span<float> logits,
               const uint8_t* mask, SamplingScratch& scratch) {
  SampleArgs args{};
  args.logits = logits.data();
  args.vocab = static_cast<int32_t>(logits.size());
  args.mask = mask;
  args.temperature = p.temperature;
  args.top_k = p.top_k;
  args.top_p = p.top_p;
  args.min_p = p.min_p;
  args.uniform = uniform;
  args.scratch_ids = scratch.ids.data();
  args.scratch_values = scratch.values.data();
  kernels.sample(args);
  return args.token;
}

// `count`: of the best ones, at most what `top` is sized for.
float logprobs(const KernelTable& kernels, std::span<const float> logits, int32_t token, size_t count,
               TopLogprobs& top) {
  LogprobArgs args{};
  args.logits = logits.data();
  args.vocab = static_cast<int32_t>(logits.size());
  args.token = token;
  args.count = static_cast<int32_t>(count);
  args.top_ids = top.ids.data();
  args.top_logprobs = top.values.data();
  kernels.logprobs(args);
  return args.logprob;
}

// The same for a slot, whose own ids come behind the best ones.
float slot_logprobs(const KernelTable& kernels, const SlotParams& p, std::span<const float> logits, int32_t token,
                    TopLogprobs& top) {
  const std::vector<int32_t>& ids = p.logprob_token_ids;
  const auto best = static_cast<size_t>(p.num_logprobs);
  const float chosen = logprobs(kernels, logits, token, ids.empty() ? best : std::max(best, size_t{1}), top);
  if (ids.empty()) return chosen;
  // The best token's is its logit less itself, less the logarithm of the sum: from it the others have the same bits.
  const float best_logit = logits[static_cast<size_t>(top.ids[0])], best_logprob = top.values[0];
  for (size_t i = 0; i < ids.size(); ++i) {
    top.ids[best + i] = ids[i];
    top.values[best + i] = (logits[static_cast<size_t>(ids[i])] - best_logit) + best_logprob;
  }
  return chosen;
}

}  // namespace

void SamplingSlot::install(const SlotReset& reset) {
  params = reset.params;
  counts.clear();
  const size_t kept = std::min(params.look_back(), reset.output.size());
  recent.assign(reset.output.end() - static_cast<std::ptrdiff_t>(kept), reset.output.end());
  if (!params.has_penalties()) return;
  for (int32_t token : reset.prompt) counts.try_emplace(token, 0);
  for (int32_t token : reset.output) ++counts[token];
}

void SamplingSlot::note(int32_t token) {
  if (params.has_penalties()) ++counts[token];
  if (params.bad_words.empty()) return;
  recent.push_back(token);
  if (recent.size() > params.look_back()) recent.erase(recent.begin());
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
  ban_bad_words(slot, logits, scratch);
  SampledRow row;
  const std::span<float> known = p.known(logits);
  // A token drawn without the mask may have been refused, which tells of its number: a row with one has its own.
  const uint32_t attempt = mask == nullptr ? 0 : 1;
  const float uniform = philox_uniform(p.seed, p.choice, static_cast<uint32_t>(sampled), attempt);
  row.token = choose(kernels, p, uniform, known, narrow(p, mask, scratch), scratch);
  // Backwards: a token replaced twice gets its first value back.
  for (auto it = scratch.raw.rbegin(); it != scratch.raw.rend(); ++it)
    logits[static_cast<size_t>(it->first)] = it->second;
  if (row.token >= 0 && p.num_logprobs >= 0) row.logprob = slot_logprobs(kernels, p, known, row.token, top);
  return row;
}

float token_logprob(const KernelTable& kernels, std::span<const float> logits, int32_t token, TopLogprobs& top) {
  return logprobs(kernels, logits, token, top.ids.size(), top);
}

}  // namespace legato
