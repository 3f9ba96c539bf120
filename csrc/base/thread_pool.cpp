#include "base/thread_pool.h"

#include <stdexcept>

#include "base/float_mode.h"
#include "base/start_thread.h"
#include "base/thread_name.h"

namespace legato {
namespace {

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

size_t checked(int threads) {
  if (threads < 1) throw std::invalid_argument("a thread pool needs at least one thread");
  return static_cast<size_t>(threads);
}

// Asks for some of the memory that a thread will read. False where nothing is left.
bool ask(std::atomic<uintptr_t>& ahead, const std::atomic<uintptr_t>& end) {
  constexpr uintptr_t kLine = 64, kLines = 8;
  uintptr_t at = ahead.load(std::memory_order_relaxed);
  if (at >= end.load(std::memory_order_relaxed)) return false;
  if (!ahead.compare_exchange_strong(at, at + kLines * kLine, std::memory_order_relaxed)) return true;
  for (uintptr_t i = 0; i < kLines; ++i) __builtin_prefetch(reinterpret_cast<const void*>(at + i * kLine), 0, 2);
  return true;
}

}  // namespace

ThreadPool::ThreadPool(int threads) : seats_(checked(threads)) {
  workers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int i = 1; i < threads; ++i) workers_.push_back(start_thread([this, i] { work(i); }));
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
  ++job_;
  for (size_t t = 0; t < seats_.size(); ++t) {
    seats_[t].left.store(uint64_t{job_} << 32 | own_items(static_cast<int>(t)), std::memory_order_release);
  }
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  take_items(0);
  for (uint32_t done; (done = done_.load(std::memory_order_acquire)) != count_;)
    wait_for_change(done_, done, seats_[0]);
}

void ThreadPool::ahead(int thread, std::span<const uint8_t> memory) {
  Seat& seat = seats_[static_cast<size_t>(thread)];
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  seat.ahead_end.store(begin + memory.size(), std::memory_order_relaxed);
  seat.ahead.store(begin, std::memory_order_relaxed);
}

// Returns once `value` is no longer `old`: a wait of tens of microseconds covers the serial code between two jobs of
// one step, a longer one sleeps.
void ThreadPool::wait_for_change(const std::atomic<uint32_t>& value, uint32_t old, Seat& seat) {
  constexpr int kSpins = 1000;
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    if (!ask(seat.ahead, seat.ahead_end)) pause();
  }
  value.wait(old, std::memory_order_acquire);
}

void ThreadPool::work(int thread) {
  name_this_thread("legato-pool");
  const FlushDenormals mode;
  uint32_t seen = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    take_items(thread);
    wait_for_change(epoch_, seen, seats_[static_cast<size_t>(thread)]);
    seen = epoch_.load(std::memory_order_acquire);
  }
}

// Of one job: in the next a thread begins with its own items again.
void ThreadPool::take_items(int thread) {
  const auto job =
      static_cast<uint32_t>(seats_[static_cast<size_t>(thread)].left.load(std::memory_order_acquire) >> 32);
  for (int i = 0; i < threads(); ++i) take_items_of((thread + i) % threads(), job, thread);
}

void ThreadPool::take_items_of(int owner, uint32_t job, int thread) {
  std::atomic<uint64_t>& own = seats_[static_cast<size_t>(owner)].left;
  uint64_t left = own.load(std::memory_order_acquire);
  while (static_cast<uint32_t>(left) != 0 && static_cast<uint32_t>(left >> 32) == job) {
    if (!own.compare_exchange_weak(left, left - 1, std::memory_order_acquire)) continue;
    const uint32_t count = count_;
    const int64_t taken = own_items(owner) - static_cast<uint32_t>(left);
    item_(context_, owner + taken * threads(), thread);
    if (done_.fetch_add(1, std::memory_order_release) + 1 == count) done_.notify_one();
    left = own.load(std::memory_order_acquire);
  }
}

// How many of the job's items belong to a thread.
uint32_t ThreadPool::own_items(int thread) const {
  const auto all = static_cast<uint32_t>(threads()), first = static_cast<uint32_t>(thread);
  return first < count_ ? (count_ - first + all - 1) / all : 0;
}

}  // namespace legato
