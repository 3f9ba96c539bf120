// One loaded model: weights, KV cache, workspace and sampling state, and the walk over its plan.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "base/aligned.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "runtime/engine_file.h"
#include "runtime/kv_pool.h"
#include "runtime/sampling.h"
#include "runtime/split.h"
#include "runtime/step.h"
#include "runtime/weights.h"
#include "runtime/workspace.h"

namespace legato {

struct RuntimeOptions {
  Isa isa = Isa::portable;
  KvType kv_type = KvType::bf16;
  int32_t block_size = 16;
  int32_t num_blocks = 0;  // per cache group
  int32_t max_rows = 0;
  int32_t max_seqs = 0;
  int32_t max_position = 0;
  int32_t threads = 1;
  bool prefault_kv = false;
};

// Bytes that a model takes beside its KV blocks.
struct MemoryNeed {
  size_t weights;                        // copied from the file
  size_t workspace;                      // activations of the largest step
  size_t tables;                         // rotary tables
  size_t scratch;                        // of threads: kernels, attention partials, sampling
  std::vector<int64_t> bytes_per_block;  // per cache group
};

// std::invalid_argument names an option that is out of range or does not fit the file.
void check_options(const EngineFile& file, const RuntimeOptions& options);
MemoryNeed memory_need(const EngineFile& file, const RuntimeOptions& options);
size_t kernel_scratch_bytes(const PlanSpec& plan, const RuntimeOptions& options);  // per thread
size_t partial_bytes(const PlanSpec& plan, const RuntimeOptions& options);
// Attention writes activation groups itself where each lies in one head.
bool writes_groups(const PlanSpec& plan, const OpSpec& attention);
size_t staging_bytes(const PlanSpec& plan, const RuntimeOptions& options);

struct SelectArgs {
  const float* x;
  float* out;
  int64_t stride;
  int32_t width;
};
struct BoundAttention {
  AttentionArgs args;
  int32_t group;
  int32_t work;  // index of its AttentionWork: ops of one shape share it
  // Where heads do not fill whole activation groups, the result is f32 first and `quantize` makes the groups.
  bool quantize;
  QuantizeArgs acts;
};
struct BoundHeads {
  HeadsArgs args;
  int32_t group;
};
// An op with every pointer that does not depend on the step filled in.
struct BoundOp {
  OpKind kind;
  bool out_domain;
  size_t next_linear;  // of a matrix product: the next one, of the next step behind the last
  std::variant<EmbedArgs, NormArgs, LinearArgs, BoundHeads, BoundAttention, SelectArgs> args;
};

// Output rows [begin, end) of a step, as many as the workspace holds.
struct OutPiece {
  size_t begin, end;
  size_t size() const { return end - begin; }
};

// Nanoseconds spent since the last reset. `ops` by OpKind.
struct Profile {
  int64_t steps = 0, rows = 0, prepare_ns = 0, sample_ns = 0;
  std::array<int64_t, kOpKinds> op_ns{};
};

class Model {
 public:
  // std::invalid_argument for options; std::bad_alloc; ThreadError. The file is copied from, and not needed afterwards.
  Model(const EngineFile& file, const RuntimeOptions& options);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const StepLimits& limits() const { return limits_; }
  // Runs one step that check_step has passed. Not reentrant.
  StepOutput run(const StepInput& step);
  // Raw logits of an output row of the last step, counted from its last piece (of several only where there are more
  // rows than min(max_rows, max_seqs)).
  std::span<const float> logits(int32_t out_row) const;
  int32_t last_outs() const { return last_outs_; }
  // Samples such a row again; top: what is reported beside the token. std::invalid_argument names what is out of range,
  // or a slot that has counted the token of the first time.
  SampledRow sample_again(const MaskedRow& row, TopLogprobs& top);

  // The bytes of a block of the cache, between steps. std::invalid_argument where there is none.
  std::span<uint8_t> kv_block(int32_t group, int32_t index);

  const Profile& profile() const { return profile_; }
  void reset_profile() { profile_ = {}; }

 private:
  struct ThreadState {
    AlignedBuffer scratch;
    SamplingScratch sampling;
    std::vector<const float*> partials;
    const uint8_t* next_weights = nullptr;  // that it reads after those of this matrix product
  };

  BoundOp bind(const OpSpec& op);
  void link_linear_ops();
  LinearArgs bind_linear(const OpSpec& op) const;
  BoundHeads bind_heads(const OpSpec& op) const;
  BoundAttention bind_attention(const OpSpec& op);
  const TensorView& tensor(int32_t index) const { return weights_.tensors()[static_cast<size_t>(index)]; }
  const BufferSpec& buffer(int32_t index) const { return plan_.buffers[static_cast<size_t>(index)]; }
  const float* vector(int32_t index) const;
  bool as_acts(int32_t buffer) const;

  void prepare(const StepInput& step);
  void run_ops(size_t begin, size_t end, const StepInput& step, OutPiece piece, StepOutput& out);
  void run_op(const BoundOp& op, const StepInput& step, OutPiece piece, StepOutput& out);
  void run_linear(const LinearArgs& args, int32_t rows);
  void ask_ahead(const BoundOp& op, const StepInput& step);
  void run_attention(const BoundAttention& op, const StepInput& step);
  void run_merges(const AttentionArgs& args, const AttentionWork& work, const StepInput& step);
  void run_select(const SelectArgs& args, const StepInput& step, OutPiece piece, StepOutput& out);
  void prepare_sampling(const StepInput& step, StepOutput& out);
  void sample(const StepInput& step, OutPiece piece, StepOutput& out);
  void sample_output(const StepInput& step, size_t o, std::span<float> logits, int thread, StepOutput& out);
  template <class Fn>
  void for_rows(int32_t rows, int64_t row_cost, Fn&& fn);

  PlanSpec plan_;
  RuntimeOptions options_;
  StepLimits limits_;
  int32_t max_outs_;  // output rows that the workspace holds
  const KernelTable& kernels_;
  ThreadPool pool_;
  ResidentWeights weights_;
  Workspace workspace_;
  std::vector<KvPool> kv_;
  std::vector<AlignedBuffer> ropes_;
  std::vector<BoundOp> ops_;
  size_t first_out_op_;                 // it and the ops behind it run once per piece of the output rows
  std::vector<AttentionShape> shapes_;  // of works_
  std::vector<AttentionWork> works_;
  AlignedBuffer partials_;
  AlignedBuffer staging_;  // f32 results of attention that are quantized afterwards
  std::vector<ThreadState> threads_;
  std::vector<SamplingSlot> slots_;
  Profile profile_;
  int32_t last_outs_ = 0;
};

}  // namespace legato
