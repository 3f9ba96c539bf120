#include "base/thread_pool.h"

#include <stdexcept>

#include "base/block_signals.h"
#include "base/float_mode.h"

namespace legato {
namespace {

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns once `value` is no longer `old`: a wait of tens of microseconds covers the serial code between two jobs of
// one step, a longer one sleeps.
void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
  constexpr int kSpins = 1000;
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads < 1) throw std::invalid_argument("a thread pool needs at least one thread");
  const BlockSignals block;
  workers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t count, Item item, void* context) {
  const FlushDenormals mode;
  if (workers_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) item(context, i, 0);
    return;
  }
  item_ = item;
  context_ = context;
  count_ = static_cast<uint32_t>(count);
  done_.store(0, std::memory_order_relaxed);
  const uint64_t job = (left_.load(std::memory_order_relaxed) >> 32) + 1;
  left_.store(job << 32 | count_, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  take_items(0);
  for (uint32_t done; (done = done_.load(std::memory_order_acquire)) != count_;) wait_for_change(done_, done);
}

void ThreadPool::work(int thread) {
  const FlushDenormals mode;
  uint32_t seen = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    take_items(thread);
    wait_for_change(epoch_, seen);
    seen = epoch_.load(std::memory_order_acquire);
  }
}

void ThreadPool::take_items(int thread) {
  uint64_t left = left_.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(left) != 0) {
    if (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acquire)) continue;
    const uint32_t count = count_;
    item_(context_, count - static_cast<uint32_t>(left), thread);
    if (done_.fetch_add(1, std::memory_order_release) + 1 == count) done_.notify_one();
    left = left_.load(std::memory_order_acquire);
  }
}

}  // namespace legato
