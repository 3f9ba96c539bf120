#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>

#include "runtime/step.h"

namespace legato {
namespace {

void need(bool ok, const char* column, const char* what) {
  if (!ok) throw std::invalid_argument(std::string("step plan: ") + column + ": " + what);
}

template <class T>
bool all_in(std::span<const T> values, int64_t low, int64_t high) {
  return std::all_of(values.begin(), values.end(), [=](T value) { return value >= low && value <= high; });
}

// Offsets of `count` runs over `total` items: start at 0, never fall, end at total.
void check_offsets(std::span<const int32_t> offsets, size_t count, size_t total, const char* column) {
  need(offsets.size() == count + 1, column, "has a wrong length");
  need(offsets.front() == 0 && static_cast<size_t>(offsets.back()) == total, column, "does not span its column");
  need(std::is_sorted(offsets.begin(), offsets.end()), column, "falls");
}

bool distinct(std::span<const int32_t> slots, int32_t max_seqs) {
  std::vector<bool> seen(static_cast<size_t>(max_seqs));
  for (int32_t slot : slots) {
    if (seen[static_cast<size_t>(slot)]) return false;
    seen[static_cast<size_t>(slot)] = true;
  }
  return true;
}

void check_rows(const StepInput& step, const StepLimits& limits) {
  const size_t rows = step.tokens.size(), seqs = step.seq_slots.size();
  need(rows >= 1 && rows <= static_cast<size_t>(limits.max_rows), "tokens", "number of rows is out of range");
  need(all_in(step.tokens, 0, limits.vocab - 1), "tokens", "a token is out of range");
  need(step.positions.size() == rows, "positions", "has a wrong length");
  need(all_in(step.positions, 0, limits.max_position - 1), "positions", "a position is out of range");
  need(step.parents.empty(), "parents", "trees of drafts are not supported");
  need(seqs >= 1 && seqs <= static_cast<size_t>(limits.max_seqs), "seq_slots", "number of sequences is out of range");
  need(all_in(step.seq_slots, 0, limits.max_seqs - 1), "seq_slots", "a slot is out of range");
  need(distinct(step.seq_slots, limits.max_seqs), "seq_slots", "a slot occurs twice");
  check_offsets(step.row_offsets, seqs, rows, "row_offsets");
  need(step.adapters.empty() || (step.adapters.size() == seqs && all_in(step.adapters, -1, -1)), "adapters",
       "adapters are not supported");
  for (size_t s = 0; s < seqs; ++s) {
    const auto begin = static_cast<size_t>(step.row_offsets[s]), end = static_cast<size_t>(step.row_offsets[s + 1]);
    for (size_t r = begin + 1; r < end; ++r) {
      need(step.positions[r] - step.positions[r - 1] == 1, "positions", "a sequence's rows are not consecutive");
    }
  }
}

// The blocks of every position that a sequence's rows look at must exist.
void check_table(const StepInput& step, const StepLimits& limits, size_t group) {
  const TableColumns& table = step.block_tables[group];
  check_offsets(table.offsets, step.seq_slots.size(), table.blocks.size(), "block_tables");
  need(all_in(table.blocks, -1, limits.num_blocks - 1), "block_tables", "a block is out of range");
  const int64_t window = limits.windows[group];
  for (size_t s = 0; s < step.seq_slots.size(); ++s) {
    const int32_t begin = step.row_offsets[s], end = step.row_offsets[s + 1];
    if (begin == end) continue;
    const int64_t first =
        window > 0 ? std::max<int64_t>(0, step.positions[static_cast<size_t>(begin)] - window + 1) : 0;
    const int64_t last = step.positions[static_cast<size_t>(end) - 1];
    const int64_t length = table.offsets[s + 1] - table.offsets[s];
    need(last / limits.block_size < length, "block_tables", "is too short for a sequence's positions");
    for (int64_t b = first / limits.block_size; b <= last / limits.block_size; ++b) {
      need(table.blocks[static_cast<size_t>(table.offsets[s] + b)] >= 0, "block_tables", "lacks a block that is read");
    }
  }
}

// Each row's K and V go to where attention will look for them: the place of its position in its sequence's blocks.
// Costs 2 ns a row.
void check_slots(const StepInput& step, const StepLimits& limits, size_t group) {
  const std::span<const int64_t> slots = step.kv_slots[group];
  const TableColumns& table = step.block_tables[group];
  need(slots.size() == step.tokens.size(), "kv_slots", "has a wrong length");
  bool ok = true;
  for (size_t s = 0; s < step.seq_slots.size(); ++s) {
    const int32_t* blocks = table.blocks.data() + table.offsets[s];
    for (auto r = static_cast<size_t>(step.row_offsets[s]); r < static_cast<size_t>(step.row_offsets[s + 1]); ++r) {
      const int32_t position = step.positions[r], block = position / limits.block_size;
      ok &= slots[r] == int64_t{blocks[block]} * limits.block_size + (position - block * limits.block_size);
    }
  }
  need(ok, "kv_slots", "a slot is not that of its row's position in the block table");
}

void check_cache(const StepInput& step, const StepLimits& limits) {
  const size_t groups = limits.windows.size();
  need(step.kv_slots.size() == groups, "kv_slots", "needs one column per cache group");
  need(step.block_tables.size() == groups, "block_tables", "needs one table per cache group");
  for (size_t g = 0; g < groups; ++g) {
    check_table(step, limits, g);
    check_slots(step, limits, g);  // no row goes without one: it attends to itself
  }
  for (const BlockCopy& copy : step.copies) {
    need(copy.group >= 0 && static_cast<size_t>(copy.group) < groups, "copies", "a cache group is out of range");
    need(copy.source_tier == 0 && copy.target_tier == 0, "copies", "there is only the device's tier");
    need(copy.source >= 0 && copy.source < limits.num_blocks && copy.target >= 0 && copy.target < limits.num_blocks,
         "copies", "a block is out of range");
  }
}

void check_outputs(const StepInput& step, const StepLimits& limits) {
  const size_t outs = step.out_rows.size();
  need(all_in(step.out_rows, 0, static_cast<int64_t>(step.tokens.size()) - 1), "out_rows", "a row is out of range");
  const auto falls = std::adjacent_find(step.out_rows.begin(), step.out_rows.end(), std::greater_equal<>());
  need(falls == step.out_rows.end(), "out_rows", "does not ascend");
  need(step.out_purposes.size() == outs, "out_purposes", "has a wrong length");
  need(step.out_targets.empty() || step.out_targets.size() == outs, "out_targets", "has a wrong length");
  for (size_t o = 0; o < outs; ++o) {
    const int8_t purpose = step.out_purposes[o];
    need(purpose == kSample || purpose == kPromptLogprobs, "out_purposes", "a purpose is not supported");
    if (purpose == kSample) continue;
    need(!step.out_targets.empty(), "out_targets", "is missing");
    need(step.out_targets[o] >= 0 && step.out_targets[o] < limits.vocab, "out_targets", "a token is out of range");
  }
  need(step.out_params.size() == outs, "out_params", "has a wrong length");
  need(all_in(step.out_params, 0, limits.max_seqs - 1), "out_params", "a slot is out of range");
  need(step.out_masks.empty() || step.out_masks.size() == outs, "out_masks", "has a wrong length");
  need(all_in(step.out_masks, -1, static_cast<int64_t>(step.masks.size()) - 1), "out_masks", "a mask is out of range");
  need(step.masks.empty() || !step.out_masks.empty(), "masks", "no output row has one");
  for (const auto& mask : step.masks) {
    need(mask.size() == (static_cast<size_t>(limits.vocab) + 7) / 8, "masks", "a mask has a wrong length");
  }
}

void check_reset(const SlotReset& reset, const StepLimits& limits) {
  const SlotParams& p = reset.params;
  need(reset.slot >= 0 && reset.slot < limits.max_seqs, "resets", "a slot is out of range");
  for (float value : {p.temperature, p.top_p, p.min_p, p.repetition_penalty, p.presence_penalty, p.frequency_penalty}) {
    need(std::isfinite(value), "resets", "a parameter is NaN or Inf");
  }
  need(p.temperature >= 0 && p.top_k >= 0 && p.repetition_penalty > 0, "resets", "a parameter is out of range");
  need(p.vocab_size >= 0 && p.vocab_size <= limits.vocab, "resets", "vocab_size is out of range");
  const int32_t known = p.vocab_size > 0 ? p.vocab_size : limits.vocab;
  for (int32_t count : {p.num_logprobs, p.num_prompt_logprobs}) {
    need(count >= -1 && count <= known, "resets", "a number of log probabilities is out of range");
  }
  need(p.bias_values.size() == p.bias_token_ids.size(), "resets", "bias_values has a wrong length");
  for (float value : p.bias_values) need(std::isfinite(value), "resets", "a bias is NaN or Inf");
  const auto check_tokens = [&](const std::vector<int32_t>& tokens) {
    need(all_in(std::span<const int32_t>(tokens), 0, limits.vocab - 1), "resets", "a token is out of range");
  };
  for (const auto* tokens : {&p.end_token_ids, &p.bias_token_ids, &p.allowed_token_ids, &p.logprob_token_ids,
                             &reset.prompt, &reset.output}) {
    check_tokens(*tokens);
  }
  for (const auto& word : p.bad_words) {
    need(!word.empty(), "resets", "a bad word is empty");
    check_tokens(word);
  }
}

}  // namespace

void check_step(const StepInput& step, const StepLimits& limits) {
  check_rows(step, limits);
  check_cache(step, limits);
  check_outputs(step, limits);
  for (const SlotReset& reset : step.resets) check_reset(reset, limits);
}

}  // namespace legato
