// Starts threads: with all signals blocked, and with an error of its own where the system has no more of them.
#pragma once

#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "base/block_signals.h"

namespace legato {

// The system has no more threads.
class ThreadError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class Fn>
std::thread start_thread(Fn&& fn) {
  const BlockSignals block;
  try {
    return std::thread(std::forward<Fn>(fn));
  } catch (const std::system_error& error) {
    throw ThreadError(error.what());
  }
}

}  // namespace legato
