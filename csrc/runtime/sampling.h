// Choosing tokens: the state that hangs on a sequence slot, and one output row.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/step.h"

namespace legato {

// A sequence slot: installed parameters, and what they need to know of the tokens so far.
struct SamplingSlot {
  SlotParams params;
  std::unordered_map<int32_t, int32_t> counts;  // for penalties: occurrences in the output, 0: in the prompt only
  std::vector<int32_t> recent;                  // for bad words: the last params.look_back() tokens of the output

  void install(const SlotReset& reset);
  // Notes a sampled token.
  void note(int32_t token);
  // Logits that penalties, biases and bans can replace.
  size_t replaced() const {
    return counts.size() + params.bias_token_ids.size() + params.end_token_ids.size() + params.bad_words.size();
  }
  // Alternatives that are reported beside a sampled token.
  size_t reported() const {
    return params.num_logprobs < 0 ? 0 : static_cast<size_t>(params.num_logprobs) + params.logprob_token_ids.size();
  }
};

// Private to one thread.
struct SamplingScratch {
  explicit SamplingScratch(int32_t vocab)
      : ids(static_cast<size_t>(vocab)),
        values(static_cast<size_t>(vocab)),
        mask((static_cast<size_t>(vocab) + 7) / 8) {}

  std::vector<int32_t> ids;
  std::vector<float> values;
  std::vector<uint8_t> mask;                   // a bit per token: those that the slot and the step allow
  std::vector<std::pair<int32_t, float>> raw;  // logits that penalties, biases and bans replaced
};

struct SampledRow {
  int32_t token = -1;                                       // -1: no token is allowed, or the row holds NaN or +Inf
  float logprob = std::numeric_limits<float>::quiet_NaN();  // NaN where not asked for
};

// An output row of the last step, counted from the first whose logits are kept, to be sampled again with a mask.
struct MaskedRow {
  int32_t out_row, slot, position;
  std::span<const uint8_t> mask;  // (vocab + 7) / 8 bytes
};

// Samples the token that follows the row at `position`. logits: [vocab], changed and restored. top: sized for
// slot.reported(), and scratch.raw for slot.replaced(), so that nothing is allocated here.
// The order of operations is that of legato.sampling.reference.sample_row.
SampledRow sample_row(const KernelTable& kernels, const SamplingSlot& slot, int32_t position, std::span<float> logits,
                      const uint8_t* mask, SamplingScratch& scratch, TopLogprobs& top);

// Log probability of `token` among all `logits`; `top` gets the best ones, as many as it is sized for.
float token_logprob(const KernelTable& kernels, std::span<const float> logits, int32_t token, TopLogprobs& top);

}  // namespace legato
