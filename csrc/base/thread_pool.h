// A fixed set of threads that share the items of one job at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace legato {

// Items are handed out in ascending order by one atomic counter, to whichever thread is free; the caller takes part. A
// thread that has not taken an item never delays a job, so an oversubscribed machine only loses that thread's help.
// Idle threads spin briefly, then sleep. Denormals are flushed (float_mode.h) wherever items run. Pool threads block
// all signals. One job at a time: `run` must not be called from two threads at once or from inside an item.
class ThreadPool {
 public:
  // Must not throw.
  using Item = void (*)(void* context, int64_t item, int thread);

  // `threads` counts the caller: threads - 1 are started. std::invalid_argument below 1, std::system_error where the
  // system has no more threads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls item(context, i, thread) once for each i in [0, count), count < 2^32; returns when all have returned, with
  // their writes visible. thread is in [0, threads()); the caller is thread 0.
  void run(int64_t count, Item item, void* context);

  // The same for a callable (int64_t item, int thread).
  template <class Fn>
  void run(int64_t count, Fn&& fn) {
    using Plain = std::remove_reference_t<Fn>;
    run(
        count, [](void* context, int64_t item, int thread) { (*static_cast<Plain*>(context))(item, thread); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  void work(int thread);
  void take_items(int thread);
  void stop();

  // The job. Written by `run` only while no item is left and none is running. Taking an item pins it: the job cannot
  // end, and so cannot be replaced, before that item is done.
  Item item_ = nullptr;
  void* context_ = nullptr;
  uint32_t count_ = 0;

  alignas(64) std::atomic<uint64_t> left_{0};   // job number << 32 | items not yet taken
  alignas(64) std::atomic<uint32_t> done_{0};   // items finished
  alignas(64) std::atomic<uint32_t> epoch_{0};  // changes when there is a new job, or the end
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace legato
