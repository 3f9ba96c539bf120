// Running: one step through the plan.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "base/float_mode.h"
#include "runtime/model.h"

namespace legato {
namespace {

using Clock = std::chrono::steady_clock;

// Nanoseconds from lap to lap.
class Stopwatch {
 public:
  int64_t lap() {
    const Clock::time_point now = Clock::now();
    const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now - last_).count();
    last_ = now;
    return ns;
  }

 private:
  Clock::time_point last_ = Clock::now();
};

// Output panels: of a gated product, pairs of packed ones.
struct Panels {
  int32_t count;
  size_t bytes;  // of one
};

Panels panels_of(const LinearArgs& args) {
  const int32_t packed = args.e.kind == EpilogueKind::glu ? 2 : 1;
  return {args.w.n_pad / kPanel / packed, args.w.panel_bytes * static_cast<size_t>(packed)};
}

}  // namespace

// Rows in runs that are worth a thread's while. row_cost: values touched per row.
template <class Fn>
void Model::for_rows(int32_t rows, int64_t row_cost, Fn&& fn) {
  constexpr int64_t kGrain = 1 << 14;
  const int64_t useful = (rows * row_cost + kGrain - 1) / kGrain;
  const int64_t items = std::min<int64_t>({rows, useful, int64_t{4} * options_.threads});
  pool_.run(items, [&](int64_t item, int) {
    fn(static_cast<int32_t>(item * rows / items), static_cast<int32_t>((item + 1) * rows / items));
  });
}

StepOutput Model::run(const StepInput& step) {
  const FlushDenormals mode;
  Stopwatch watch;
  StepOutput out;
  out.step_id = step.step_id;
  out.faults.resize(step.tokens.size());
  prepare(step);
  prepare_sampling(step, out);
  out.prepare_ns = watch.lap();
  run_ops(0, first_out_op_, step, {0, 0}, out);
  const size_t outs = step.out_rows.size();
  OutPiece piece{0, 0};
  do {  // once without output rows too: the rows are looked through for faults
    piece = {piece.end, std::min(outs, piece.end + static_cast<size_t>(max_outs_))};
    run_ops(first_out_op_, ops_.size(), step, piece, out);
    watch.lap();
    sample(step, piece, out);
    out.sample_ns += watch.lap();
  } while (piece.end < outs);

  ++profile_.steps;
  profile_.rows += static_cast<int64_t>(step.tokens.size());
  profile_.prepare_ns += out.prepare_ns;
  profile_.sample_ns += out.sample_ns;
  return out;
}

void Model::prepare(const StepInput& step) {
  for (const SlotReset& reset : step.resets) slots_[static_cast<size_t>(reset.slot)].install(reset);
  for (const BlockCopy& copy : step.copies) kv_[static_cast<size_t>(copy.group)].copy_block(copy.source, copy.target);
  for (size_t i = 0; i < works_.size(); ++i) works_[i] = split_attention(step, shapes_[i]);
}

void Model::run_ops(size_t begin, size_t end, const StepInput& step, OutPiece piece, StepOutput& out) {
  Stopwatch watch;
  for (size_t i = begin; i < end; ++i) {
    run_op(ops_[i], step, piece, out);
    const int64_t ns = watch.lap();
    out.forward_ns += ns;
    profile_.op_ns[static_cast<size_t>(ops_[i].kind)] += ns;
  }
}

void Model::run_op(const BoundOp& op, const StepInput& step, OutPiece piece, StepOutput& out) {
  const auto rows = static_cast<int32_t>(op.out_domain ? piece.size() : step.tokens.size());
  switch (op.kind) {
    case OpKind::embed: {
      EmbedArgs args = std::get<EmbedArgs>(op.args);
      args.tokens = step.tokens.data();
      return for_rows(rows, args.width, [&](int32_t begin, int32_t end) { kernels_.embed(args, begin, end); });
    }
    case OpKind::norm: {
      const auto& args = std::get<NormArgs>(op.args);
      return for_rows(rows, args.width, [&](int32_t begin, int32_t end) { kernels_.norm(args, begin, end); });
    }
    case OpKind::linear:
    case OpKind::logits:
      ask_ahead(ops_[op.next_linear], step);
      return run_linear(std::get<LinearArgs>(op.args), rows);
    case OpKind::heads_to_cache: {
      const auto& bound = std::get<BoundHeads>(op.args);
      HeadsArgs args = bound.args;
      args.positions = step.positions.data();
      args.kv_slots = step.kv_slots[static_cast<size_t>(bound.group)].data();
      return for_rows(rows, 2 * args.x_stride,
                      [&](int32_t begin, int32_t end) { kernels_.heads_to_cache(args, begin, end); });
    }
    case OpKind::attention:
      return run_attention(std::get<BoundAttention>(op.args), step);
    case OpKind::select_rows:
      return run_select(std::get<SelectArgs>(op.args), step, piece, out);
  }
}

void Model::run_linear(const LinearArgs& args, int32_t rows) {
  if (rows == 0) return;
  const LinearSplit split(rows, panels_of(args).count, options_.threads);
  pool_.run(split.items(), [&](int64_t item, int thread) {
    ThreadState& state = threads_[static_cast<size_t>(thread)];
    split.visit(item, [&](int32_t row_begin, int32_t row_end, int32_t panel_begin, int32_t panel_end, bool last) {
      kernels_.linear(args, row_begin, row_end, panel_begin, panel_end, last ? state.next_weights : nullptr,
                      state.scratch.data());
    });
  });
}

// Threads that wait, from now until `op` begins, ask for the weights that they will read in it, and so do those that
// multiply the last of what they have before it.
void Model::ask_ahead(const BoundOp& op, const StepInput& step) {
  const auto& args = std::get<LinearArgs>(op.args);
  const size_t rows = op.out_domain ? step.out_rows.size() : step.tokens.size();
  if (rows == 0) return;
  const auto [panels, bytes] = panels_of(args);
  const LinearSplit split(static_cast<int32_t>(rows), panels, options_.threads);
  for (int32_t t = 0; t < options_.threads; ++t) {
    const int32_t begin = split.first_panel(t), end = split.first_panel(t + 1);
    const uint8_t* weights = args.w.panels + static_cast<size_t>(begin) * bytes;
    threads_[static_cast<size_t>(t)].next_weights = begin < end ? weights : nullptr;
    if (begin < end) pool_.ahead(t, {weights, std::min(kAheadBytes, static_cast<size_t>(end - begin) * bytes)});
  }
}

void Model::run_attention(const BoundAttention& op, const StepInput& step) {
  AttentionArgs args = op.args;
  args.positions = step.positions.data();
  const AttentionWork& work = works_[static_cast<size_t>(op.work)];
  const TableColumns& table = step.block_tables[static_cast<size_t>(op.group)];
  const int64_t entry = attention_partial_floats(args.kv);
  float* partials = partials_.as<float>();
  pool_.run(static_cast<int64_t>(work.pieces.size()), [&](int64_t i, int thread) {
    const auto item_at = [&](const AttentionPiece& piece) {
      return item_of(piece, table.blocks.data() + table.offsets[static_cast<size_t>(piece.sequence)],
                     threads_[static_cast<size_t>(thread)].scratch.as<float>());
    };
    const AttentionPiece& piece = work.pieces[static_cast<size_t>(i)];
    AttentionItem item = item_at(piece), next;
    if (const AttentionPiece* after = work.after(i, options_.threads)) {
      next = item_at(*after);
      item.next = &next;
    }
    item.partial = piece.partial < 0 ? nullptr : partials + piece.partial * entry;
    kernels_.attention(args, item);
  });
  if (!work.merges.empty()) run_merges(args, work, step);
  if (op.quantize) {
    for_rows(static_cast<int32_t>(step.tokens.size()), args.out_stride,
             [&](int32_t begin, int32_t end) { kernels_.quantize(op.acts, begin, end); });
  }
}

void Model::run_merges(const AttentionArgs& args, const AttentionWork& work, const StepInput& step) {
  const int32_t group_heads = args.heads / args.kv.kv_heads;
  const int64_t entry = attention_partial_floats(args.kv);
  pool_.run(static_cast<int64_t>(work.merges.size()), [&](int64_t i, int thread) {
    const AttentionMerge& merge = work.merges[static_cast<size_t>(i)];
    const float** list = threads_[static_cast<size_t>(thread)].partials.data();
    const int64_t rows = merge.row_end - merge.row_begin;
    for (int32_t row = merge.row_begin; row < merge.row_end; ++row) {
      const int32_t position = step.positions[static_cast<size_t>(row)];
      const int32_t first = first_split(position, args.window), last = last_split(position);
      for (int32_t h = 0; h < group_heads; ++h) {
        for (int32_t split = first; split <= last; ++split) {
          const int64_t line = (split - merge.split_begin) * rows + (row - merge.row_begin);
          list[split - first] = partials_.as<float>() + (merge.partial + line * group_heads + h) * entry;
        }
        kernels_.attention_merge(args, row, merge.kv_head * group_heads + h, list, last - first + 1);
      }
    }
  });
}

void Model::run_select(const SelectArgs& args, const StepInput& step, OutPiece piece, StepOutput& out) {
  if (piece.begin == 0) {
    // The residual stream keeps a NaN or Inf of any layer, so that this one look finds the row.
    std::vector<uint8_t> faults(step.tokens.size());
    kernels_.find_faults(args.x, args.stride, args.width, static_cast<int32_t>(faults.size()), faults.data());
    for (size_t row = 0; row < faults.size(); ++row) out.faults[row] |= faults[row];
  }
  for (size_t o = piece.begin; o < piece.end; ++o) {
    std::memcpy(args.out + static_cast<int64_t>(o - piece.begin) * args.stride, args.x + step.out_rows[o] * args.stride,
                static_cast<size_t>(args.width) * sizeof(float));
  }
}

std::span<uint8_t> Model::kv_block(int32_t group, int32_t index) {
  if (group < 0 || static_cast<size_t>(group) >= kv_.size() || index < 0 || index >= limits_.num_blocks) {
    throw std::invalid_argument("there is no such block in the KV cache");
  }
  return kv_[static_cast<size_t>(group)].block(index);
}

std::span<const float> Model::logits(int32_t out_row) const {
  const int32_t buffer = plan_.ops.back().out;
  return {workspace_.f32(buffer) + out_row * workspace_.stride(buffer), static_cast<size_t>(limits_.vocab)};
}

// All that sampling allocates, before it runs in parallel.
void Model::prepare_sampling(const StepInput& step, StepOutput& out) {
  out.tokens.assign(step.out_rows.size(), -1);
  out.logprobs.assign(step.out_rows.size(), std::numeric_limits<float>::quiet_NaN());
  out.top_logprobs.resize(step.out_rows.size());
  size_t replaced = 0;
  for (size_t o = 0; o < step.out_rows.size(); ++o) {
    const SamplingSlot& slot = slots_[static_cast<size_t>(step.out_params[o])];
    const bool samples = step.out_purposes[o] == kSample;
    const size_t count = samples ? slot.reported() : static_cast<size_t>(std::max(0, slot.params.num_prompt_logprobs));
    out.top_logprobs[o].ids.resize(count);
    out.top_logprobs[o].values.resize(count);
    replaced = std::max(replaced, slot.replaced());
  }
  for (ThreadState& thread : threads_) thread.sampling.raw.reserve(replaced);
}

void Model::sample(const StepInput& step, OutPiece piece, StepOutput& out) {
  const int32_t logits = plan_.ops.back().out;
  last_outs_ = static_cast<int32_t>(piece.size());
  pool_.run(static_cast<int64_t>(piece.size()), [&](int64_t item, int thread) {
    const std::span<float> values(workspace_.f32(logits) + item * workspace_.stride(logits),
                                  static_cast<size_t>(limits_.vocab));
    sample_output(step, piece.begin + static_cast<size_t>(item), values, thread, out);
  });
  // Not above: several output rows may share a slot.
  for (size_t o = piece.begin; o < piece.end; ++o) {
    if (out.tokens[o] >= 0) slots_[static_cast<size_t>(step.out_params[o])].note(out.tokens[o]);
  }
}

SampledRow Model::sample_again(const MaskedRow& row, TopLogprobs& top) {
  if (row.out_row < 0 || row.out_row >= last_outs_) throw std::invalid_argument("the logits of the row are not kept");
  if (row.slot < 0 || row.slot >= limits_.max_seqs) throw std::invalid_argument("there is no such slot");
  if (row.mask.size() != (static_cast<size_t>(limits_.vocab) + 7) / 8) {
    throw std::invalid_argument("a mask has the wrong size");
  }
  const SamplingSlot& slot = slots_[static_cast<size_t>(row.slot)];
  if (slot.params.has_penalties() || !slot.params.bad_words.empty()) {
    throw std::invalid_argument("the slot counts what was sampled");
  }
  const FlushDenormals mode;
  top.ids.resize(slot.reported());
  top.values.resize(slot.reported());
  const int32_t buffer = plan_.ops.back().out;
  const std::span<float> logits(workspace_.f32(buffer) + row.out_row * workspace_.stride(buffer),
                                static_cast<size_t>(limits_.vocab));
  return sample_row(kernels_, slot, row.position, logits, row.mask.data(), threads_[0].sampling, top);
}

void Model::sample_output(const StepInput& step, size_t o, std::span<float> logits, int thread, StepOutput& out) {
  const auto row = static_cast<size_t>(step.out_rows[o]);
  if (out.faults[row] != 0) return;
  const SamplingSlot& slot = slots_[static_cast<size_t>(step.out_params[o])];
  if (step.out_purposes[o] == kPromptLogprobs) {
    out.logprobs[o] = token_logprob(kernels_, slot.params.known(logits), step.out_targets[o], out.top_logprobs[o]);
    out.faults[row] = std::isnan(out.logprobs[o]);
    return;
  }
  const int32_t mask = step.out_masks.empty() ? -1 : step.out_masks[o];
  const SampledRow sampled = sample_row(kernels_, slot, step.positions[row], logits,
                                        mask < 0 ? nullptr : step.masks[static_cast<size_t>(mask)].data(),
                                        threads_[static_cast<size_t>(thread)].sampling, out.top_logprobs[o]);
  out.tokens[o] = sampled.token;
  out.logprobs[o] = sampled.logprob;
  if (sampled.token >= 0) return;
  // It is the model's fault only where its logits are: masks, bans and allowed tokens may leave nothing too.
  kernels_.find_faults(logits.data(), std::ssize(logits), static_cast<int32_t>(logits.size()), 1, &out.faults[row]);
}

}  // namespace legato
