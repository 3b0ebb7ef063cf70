// SIGTERM, SIGINT, SIGHUP and our own wake-up, taken by the main thread when it asks for them.
#ifndef TCGEMM_SERVER_MAIN_SIGNALS_H_
#define TCGEMM_SERVER_MAIN_SIGNALS_H_

#include "base/clock.h"

namespace tcgemm {

// Before any thread is made: no thread is interrupted by these signals from now on; SIGPIPE is
// ignored.
void BlockSignals();

enum class Wake { kTimeout, kTerminate, kReload, kNotified };

// What came first. One thread at a time. kInfiniteFuture waits for ever.
Wake WaitForSignal(TimePoint deadline);

// Makes WaitForSignal return kNotified. From any thread.
void NotifyMainThread();

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_SIGNALS_H_
