#include "runtime/runtime.h"

#include <stdexcept>
#include <string>
#include <utility>

#include "base/start_thread.h"
#include "base/thread_name.h"

namespace legato {

Runtime::Runtime(const EngineFile& file, const RuntimeOptions& options) : model_(file, options) {
  thread_ = start_thread([this] { work(); });
}

Runtime::~Runtime() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return state_ != State::launched; });
    state_ = State::closing;
  }
  changed_.notify_all();
  thread_.join();
}

void Runtime::launch(StepInput step) {
  check_step(step, model_.limits());
  {
    const auto lock = between_steps();
    input_ = std::move(step);
    state_ = State::launched;
  }
  changed_.notify_all();
}

StepOutput Runtime::collect(int64_t step_id) {
  std::unique_lock lock(mutex_);
  if ((state_ != State::launched && state_ != State::done) || input_.step_id != step_id) {
    throw std::logic_error("step " + std::to_string(step_id) + " was not launched");
  }
  changed_.wait(lock, [this] { return state_ == State::done; });
  state_ = State::idle;
  return std::move(output_);
}

// What is locked with this lock is not in use by a step.
std::unique_lock<std::mutex> Runtime::between_steps() const {
  std::unique_lock lock(mutex_);
  if (state_ != State::idle) throw std::logic_error("a step is in flight: collect it first");
  return lock;
}

StepOutput Runtime::sample_again(std::span<const MaskedRow> rows) {
  const auto lock = between_steps();
  StepOutput out;
  out.step_id = input_.step_id;
  for (const MaskedRow& row : rows) {
    const SampledRow sampled = model_.sample_again(row, out.top_logprobs.emplace_back());
    out.tokens.push_back(sampled.token);
    out.logprobs.push_back(sampled.logprob);
  }
  return out;
}

std::vector<float> Runtime::logits() const {
  const auto lock = between_steps();
  std::vector<float> values;
  for (int32_t o = 0; o < model_.last_outs(); ++o) {
    const std::span<const float> row = model_.logits(o);
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
}

int32_t Runtime::num_kept_logits() const {
  const auto lock = between_steps();
  return model_.last_outs();
}

std::span<uint8_t> Runtime::kv_block(int32_t group, int32_t index) {
  const auto lock = between_steps();
  return model_.kv_block(group, index);
}

Profile Runtime::profile() const {
  const auto lock = between_steps();
  return model_.profile();
}

void Runtime::reset_profile() {
  const auto lock = between_steps();
  model_.reset_profile();
}

StepOutput Runtime::run_launched() {
  try {
    return model_.run(input_);
  } catch (const std::exception& error) {
    StepOutput failed;
    failed.step_id = input_.step_id;
    failed.error = error.what();
    return failed;
  }
}

void Runtime::work() {
  name_this_thread("legato-step");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return state_ == State::launched || state_ == State::closing; });
    if (state_ == State::closing) return;
    lock.unlock();
    StepOutput output = run_launched();
    lock.lock();
    output_ = std::move(output);
    state_ = State::done;
    changed_.notify_all();
  }
}

}  // namespace legato
