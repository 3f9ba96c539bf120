// A model with a thread of its own: launch returns at once, collect waits.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/model.h"

namespace legato {

class Runtime {
 public:
  // Throws as Model, and ThreadError.
  Runtime(const EngineFile& file, const RuntimeOptions& options);
  // Waits for a step in flight.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const StepLimits& limits() const { return model_.limits(); }
  // Checks and starts a step; what its columns point to must live until it is collected. std::invalid_argument names
  // the column at fault, std::logic_error where a step is in flight or not collected.
  void launch(StepInput step);
  // Waits for the step. std::logic_error where `step_id` was not launched.
  StepOutput collect(int64_t step_id);

  // The rest is for between steps: std::logic_error where one is in flight or not collected.

  // Tokens of rows of the last step, with other masks. Throws as Model::sample_again. The same fields are filled as in
  // a step, one entry per row.
  StepOutput sample_again(std::span<const MaskedRow> rows);
  // The raw logits of the last step, [output rows][vocab].
  std::vector<float> logits() const;
  int32_t num_kept_logits() const;  // output rows, the last ones of the step
  // The bytes of a block of the cache, until the next step. std::invalid_argument where there is none.
  std::span<uint8_t> kv_block(int32_t group, int32_t index);
  Profile profile() const;
  void reset_profile();

 private:
  enum class State { idle, launched, done, closing };

  std::unique_lock<std::mutex> between_steps() const;
  void work();
  StepOutput run_launched();

  Model model_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::idle;
  StepInput input_;
  StepOutput output_;
  std::thread thread_;
};

}  // namespace legato
