// How long a piece of work takes at best. For the benchmarks of `_native.ops`.
#pragma once

#include <chrono>

namespace legato {

// Seconds of the fastest of the passes that fit into `min_seconds`, one at least, after one that warms up.
template <class Pass>
double best_seconds(double min_seconds, Pass&& pass) {
  using Clock = std::chrono::steady_clock;
  pass();
  double best = 1e30, total = 0;
  do {
    const Clock::time_point start = Clock::now();
    pass();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = seconds < best ? seconds : best;
    total += seconds;
  } while (total < min_seconds);
  return best;
}

}  // namespace legato
