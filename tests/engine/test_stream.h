// The streams and events of the test device: operations wait until somebody waits for an event
// behind them. Not locked: TSan finds two users of one.
#ifndef TCGEMM_TESTS_ENGINE_TEST_STREAM_H_
#define TCGEMM_TESTS_ENGINE_TEST_STREAM_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/device.h"

namespace tcgemm {

struct TestStream final : Stream {
  std::deque<std::function<void()>> pending;
  size_t run = 0;                  // operations that are no longer pending
  std::vector<TestStream*> waits;  // for those, or those for it

  size_t end() const { return run + pending.size(); }
  void RunUntil(size_t position) {
    while (run < position) {
      const std::function<void()> operation = std::move(pending.front());
      pending.pop_front();
      ++run;
      operation();
    }
  }
  void Drop() {
    run = end();
    pending.clear();
  }
};

struct TestEvent final : Event {
  TestStream* stream = nullptr;
  size_t position = 0;  // operations before it
};

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_ENGINE_TEST_STREAM_H_
