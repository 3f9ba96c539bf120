// How long a piece of work takes at best. For the benchmarks of `_native.ops`.
#pragma once

#include <chrono>
#include <utility>

namespace legato {

// Seconds of one of many like calls, from the fastest pass of `min_seconds`, after one that warms up. A pass takes
// calls until a millisecond is over. As those that measure the limits of the machine, passes are short, so that some
// fall between the turns of other processes: the best of long ones is a mean, which no limit is.
template <class Call>
double best_seconds(double min_seconds, Call&& call) {
  constexpr double kPassSeconds = 1e-3;
  const auto pass = [&] {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point start = Clock::now();
    double seconds = 0;
    int calls = 0;
    for (; seconds < kPassSeconds; ++calls) {
      call();
      seconds = std::chrono::duration<double>(Clock::now() - start).count();
    }
    return std::pair{seconds, seconds / calls};
  };
  pass();
  double best = 1e30, total = 0;
  do {
    const auto [seconds, each] = pass();
    best = each < best ? each : best;
    total += seconds;
  } while (total < min_seconds);
  return best;
}

}  // namespace legato
