// One step's input and output. Columns are as in legato.core.types.StepPlan; they are borrowed until the step is
// collected.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace legato {

// Sampling parameters of one sequence slot, installed by a reset.
struct SlotParams {
  float temperature = 0.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;
  float min_p = 0.0f;
  uint64_t seed = 0;
  uint32_t choice = 0;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  int32_t num_logprobs = -1;         // -1: none
  int32_t num_prompt_logprobs = -1;  // -1: none
  int32_t min_position = 0;
  int32_t vocab_size = 0;  // tokens below it may be chosen and reported, 0: all
  std::vector<int32_t> end_token_ids;
  std::vector<int32_t> bias_token_ids;
  std::vector<float> bias_values;               // one per bias_token_ids
  std::vector<int32_t> allowed_token_ids;       // empty: all
  std::vector<std::vector<int32_t>> bad_words;  // token sequences that the output may not hold
  std::vector<int32_t> logprob_token_ids;       // reported behind the best ones

  bool has_penalties() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
  // Of [vocab] logits, those of the tokens that may be chosen and reported.
  template <class T>
  std::span<T> known(std::span<T> logits) const {
    return vocab_size > 0 ? logits.first(static_cast<size_t>(vocab_size)) : logits;
  }
  // Output tokens that a bad word can depend on.
  size_t look_back() const {
    size_t tokens = 0;
    for (const auto& word : bad_words) tokens = std::max(tokens, word.size() - 1);
    return tokens;
  }
};

// What an output row is for: values of legato.core.types.OutputPurpose.
constexpr int8_t kSample = 0, kPromptLogprobs = 2;

struct SlotReset {
  int32_t slot;
  SlotParams params;
  std::vector<int32_t> prompt, output;  // tokens known so far
};

struct BlockCopy {
  int32_t group, source_tier, source, target_tier, target;
};

struct TableColumns {
  std::span<const int32_t> offsets;  // [seqs + 1]
  std::span<const int32_t> blocks;
};

struct StepInput {
  int64_t step_id = 0;
  std::span<const int32_t> tokens, positions;      // [rows]
  std::vector<std::span<const int64_t>> kv_slots;  // per cache group: [rows]
  std::span<const int32_t> parents;                // must be empty
  std::span<const int32_t> row_offsets;            // [seqs + 1]
  std::span<const int32_t> seq_slots;              // [seqs]
  std::vector<TableColumns> block_tables;          // per cache group
  std::span<const int32_t> adapters;               // [seqs] of -1, or empty
  std::span<const int32_t> out_rows;               // [outs]
  std::span<const int8_t> out_purposes;            // [outs]
  std::span<const int32_t> out_params;             // [outs]
  std::span<const int32_t> out_masks;              // [outs], or empty
  std::span<const int32_t> out_targets;            // [outs], or empty: tokens whose log probability is asked for
  std::vector<std::span<const uint8_t>> masks;     // (vocab + 7) / 8 bytes each
  std::vector<SlotReset> resets;
  std::vector<BlockCopy> copies;
};

struct TopLogprobs {
  std::vector<int32_t> ids;
  std::vector<float> values;
};

struct StepOutput {
  int64_t step_id = 0;
  std::vector<int32_t> tokens;            // per output row, -1 where none was sampled
  std::vector<float> logprobs;            // per output row, NaN where not asked for
  std::vector<TopLogprobs> top_logprobs;  // per output row, of no tokens where not asked for
  std::vector<uint8_t> faults;            // per row
  int64_t prepare_ns = 0, forward_ns = 0, sample_ns = 0;
  std::string error;  // not empty: the step failed as a whole
};

// What a step must fit into.
struct StepLimits {
  int32_t vocab, max_rows, max_seqs, max_position, block_size, num_blocks;
  std::vector<int32_t> windows;  // per cache group: positions an op looks back, 0 = all
};

// std::invalid_argument names the column at fault. Afterwards every index in the step is in range.
void check_step(const StepInput& step, const StepLimits& limits);

}  // namespace legato
