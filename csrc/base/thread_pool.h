// A fixed set of threads that share the items of one job at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

namespace legato {

// Thread t of n has items t, t + n, t + 2 n, ... of a job for its own and takes them in this order; then it helps the
// others. The caller takes part. A thread that has not taken an item never delays a job, so an oversubscribed machine
// only loses that thread's help. Idle threads spin briefly, then sleep. Denormals are flushed (float_mode.h) wherever
// items run. Pool threads block all signals, and are called legato-pool. One job at a time: `run` must not be called
// from two threads at once or from inside an item.
class ThreadPool {
 public:
  // Must not throw.
  using Item = void (*)(void* context, int64_t item, int thread);

  // `threads` counts the caller: threads - 1 are started. std::invalid_argument below 1, ThreadError where the system
  // has no more threads: those that were started have ended then.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(seats_.size()); }

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

  // `thread` will read this memory in a job to come: it asks the cache for it while it waits, in place of what it was
  // told before. A hint, to be given by the caller of `run` between its jobs.
  void ahead(int thread, std::span<const uint8_t> memory);

 private:
  // What belongs to one thread.
  struct alignas(64) Seat {
    std::atomic<uint64_t> left{0};  // job number << 32 | its items that nobody has taken yet
    std::atomic<uintptr_t> ahead{0}, ahead_end{0};
  };

  void work(int thread);
  void take_items(int thread);
  void take_items_of(int owner, uint32_t job, int thread);
  void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old, Seat& seat);
  uint32_t own_items(int thread) const;
  void stop();

  // The job. Written by `run` only while no item is left and none is running. Taking an item pins it: the job cannot
  // end, and so cannot be replaced, before that item is done.
  Item item_ = nullptr;
  void* context_ = nullptr;
  uint32_t count_ = 0;
  uint32_t job_ = 0;  // its number
  std::vector<Seat> seats_;
  alignas(64) std::atomic<uint32_t> done_{0};   // items finished
  alignas(64) std::atomic<uint32_t> epoch_{0};  // changes when there is a new job, or the end
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace legato
