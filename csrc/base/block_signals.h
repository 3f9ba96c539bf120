// Blocks all signals on the calling thread while an object of this class lives. Signals belong to the threads of the
// program: a thread started meanwhile inherits the mask, and keeps it.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace legato {

class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;

 private:
  sigset_t saved_;
};

}  // namespace legato
