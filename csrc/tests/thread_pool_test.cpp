#include "base/thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/check.h"

namespace legato {
namespace {

// Plain (not atomic) memory: a missing barrier is a data race that the thread sanitizer reports.
void each_item_runs_once_and_its_writes_are_seen() {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    for (int64_t count : {0, 1, 2, 7, 64, 1000}) {
      std::vector<int> runs(static_cast<size_t>(count));
      for (int repeat = 1; repeat <= 20; ++repeat) {
        pool.run(count, [&](int64_t item, int thread) {
          CHECK(thread >= 0 && thread < threads);
          ++runs[static_cast<size_t>(item)];
        });
        for (int value : runs) CHECK(value == repeat);
      }
    }
  }
}

void a_job_sees_what_was_written_before_it() {
  ThreadPool pool(4);
  int64_t input = 0;
  std::vector<int64_t> output(16);
  for (input = 0; input < 2000; ++input) {
    pool.run(16, [&](int64_t item, int) { output[static_cast<size_t>(item)] = input * item; });
    for (int64_t i = 0; i < 16; ++i) CHECK(output[static_cast<size_t>(i)] == input * i);
  }
}

void two_items_run_at_the_same_time_on_their_own_threads() {
  ThreadPool pool(2);
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::atomic<int> arrived{0};
    pool.run(2, [&](int64_t item, int thread) {
      CHECK(item == thread);
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
    });
    CHECK(arrived.load() == 2);
  }
}

void a_thread_that_is_held_up_is_helped() {
  ThreadPool pool(2);
  std::atomic<int> done{0};
  pool.run(9, [&](int64_t item, int) {
    if (item == 0) {  // the first of thread 0, which has items 2, 4, 6 and 8 too
      while (done.load() < 8) std::this_thread::yield();
    } else {
      done.fetch_add(1);
    }
  });
  CHECK(done.load() == 8);
}

// The sanitizer looks on: what is asked for may change and end while threads ask.
void what_is_asked_for_ahead_changes_nothing() {
  ThreadPool pool(3);
  const std::vector<uint8_t> memory(1 << 16, 7);
  for (int64_t job = 0; job < 500; ++job) {
    for (int t = 0; t < 3; ++t) pool.ahead(t, std::span(memory).subspan(static_cast<size_t>(job), 1 << 12));
    std::vector<int64_t> output(3);
    pool.run(3,
             [&](int64_t item, int) { output[static_cast<size_t>(item)] = job + memory[static_cast<size_t>(item)]; });
    for (int64_t value : output) CHECK(value == job + 7);
  }
}

void sleeping_threads_wake_and_stop() {
  for (int i = 0; i < 50; ++i) {
    ThreadPool idle(3);
  }
  ThreadPool pool(2);
  for (int i = 0; i < 3; ++i) {
    timespec pause{0, 2'000'000};  // longer than the spin: the workers are asleep when the job comes
    nanosleep(&pause, nullptr);
    std::atomic<int> arrived{0};
    pool.run(2, [&](int64_t, int) {
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
    });
  }
}

bool flushes_denormals() {
  volatile float tiny = std::numeric_limits<float>::denorm_min();
  volatile float sum = tiny + tiny;
  return sum == 0.0f;
}

void denormals_are_flushed_inside_only() {
  for (int threads : {1, 4}) {
    ThreadPool pool(threads);
    CHECK(!flushes_denormals());
    std::vector<char> flushed(64);
    pool.run(64, [&](int64_t item, int) { flushed[static_cast<size_t>(item)] = flushes_denormals(); });
    for (char value : flushed) CHECK(value);
    CHECK(!flushes_denormals());
  }
}

void pool_threads_block_signals() {
  ThreadPool pool(3);
  std::atomic<int> workers{0};
  while (workers.load() == 0) {
    pool.run(64, [&](int64_t, int thread) {
      sigset_t mask;
      pthread_sigmask(SIG_SETMASK, nullptr, &mask);
      CHECK(sigismember(&mask, SIGINT) == (thread == 0 ? 0 : 1));
      if (thread != 0) workers.fetch_add(1);
      std::this_thread::yield();
    });
  }
}

void pool_threads_have_a_name() {
  ThreadPool pool(3);
  std::atomic<int> workers{0};
  while (workers.load() == 0) {
    pool.run(64, [&](int64_t, int thread) {
      char name[16];
      pthread_getname_np(pthread_self(), name, sizeof(name));
      CHECK((std::string(name) == "legato-pool") == (thread != 0));
      if (thread != 0) workers.fetch_add(1);
      std::this_thread::yield();
    });
  }
}

void a_pool_without_threads_is_refused() {
  bool refused = false;
  try {
    ThreadPool pool(0);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused);
}

}  // namespace
}  // namespace legato

int main() {
  legato::each_item_runs_once_and_its_writes_are_seen();
  legato::a_job_sees_what_was_written_before_it();
  legato::two_items_run_at_the_same_time_on_their_own_threads();
  legato::a_thread_that_is_held_up_is_helped();
  legato::what_is_asked_for_ahead_changes_nothing();
  legato::sleeping_threads_wake_and_stop();
  legato::denormals_are_flushed_inside_only();
  legato::pool_threads_block_signals();
  legato::pool_threads_have_a_name();
  legato::a_pool_without_threads_is_refused();
}
