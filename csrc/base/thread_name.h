// The name of a thread as the system knows it: /proc/PID/task/*/comm, `top -H`, debuggers.
#pragma once

#include <pthread.h>

namespace legato {

// Of the calling thread; at most 15 bytes.
inline void name_this_thread(const char* name) {
#if defined(__linux__)
  pthread_setname_np(pthread_self(), name);
#else
  static_cast<void>(name);
#endif
}

}  // namespace legato
