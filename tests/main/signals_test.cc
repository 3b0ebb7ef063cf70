#include "server/main/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

namespace tcgemm {
namespace {

class SignalsTest : public ::testing::Test {
 protected:
  SignalsTest() { BlockSignals(); }
  ~SignalsTest() override {
    while (WaitForSignal(Clock::Real()->Now()) != Wake::kTimeout) {
    }
  }
};

TEST_F(SignalsTest, ATimeInThePastOnlyLooks) {
  EXPECT_EQ(WaitForSignal(TimePoint::min()), Wake::kTimeout);
  EXPECT_EQ(WaitForSignal(Clock::Real()->Now() + std::chrono::milliseconds(1)), Wake::kTimeout);
}

TEST_F(SignalsTest, SignalsThatCameBeforeAreNotLost) {
  kill(getpid(), SIGTERM);
  EXPECT_EQ(WaitForSignal(kInfiniteFuture), Wake::kTerminate);
  kill(getpid(), SIGINT);
  EXPECT_EQ(WaitForSignal(TimePoint::min()), Wake::kTerminate);
  kill(getpid(), SIGHUP);
  EXPECT_EQ(WaitForSignal(kInfiniteFuture), Wake::kReload);
  NotifyMainThread();
  EXPECT_EQ(WaitForSignal(kInfiniteFuture), Wake::kNotified);
  EXPECT_EQ(WaitForSignal(TimePoint::min()), Wake::kTimeout);
}

TEST_F(SignalsTest, AnotherThreadWakesTheWaiter) {
  std::thread notifier(NotifyMainThread);
  EXPECT_EQ(WaitForSignal(kInfiniteFuture), Wake::kNotified);
  notifier.join();
}

TEST_F(SignalsTest, ABrokenPipeIsAnErrorAndNoDeath) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  EXPECT_EQ(write(ends[1], "x", 1), -1);
  close(ends[1]);
}

}  // namespace
}  // namespace tcgemm
