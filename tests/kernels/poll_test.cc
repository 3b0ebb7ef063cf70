#include "kernels/poll.h"

#include <gtest/gtest.h>

#include <vector>

namespace tcgemm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(PollTest, SpinsThenSleepsEverLonger) {
  EXPECT_EQ(PollPause(Nanos(0)), Nanos(0));
  EXPECT_EQ(PollPause(microseconds(50) - Nanos(1)), Nanos(0));
  EXPECT_EQ(PollPause(microseconds(50)), microseconds(5));
  EXPECT_EQ(PollPause(microseconds(80)), microseconds(5));
  EXPECT_EQ(PollPause(microseconds(160)), microseconds(10));
  EXPECT_EQ(PollPause(milliseconds(16)), milliseconds(1));
  EXPECT_EQ(PollPause(seconds(10)), milliseconds(1));
}

// A world where a question takes 1 µs and a sleep as long as it is told.
class PollWorld {
 public:
  absl::Status Poll(Nanos ready_after, Nanos limit) {
    const TimePoint start = clock_.Now();
    return PollUntil(
        clock_, limit,
        [&]() -> absl::StatusOr<bool> {
          ++questions;
          const bool ready = clock_.Now() - start >= ready_after;
          clock_.Advance(microseconds(1));
          if (!failure.ok()) return failure;
          return ready;
        },
        [&](Nanos pause) {
          sleeps.push_back(pause);
          clock_.Advance(pause);
        });
  }
  Nanos Elapsed() const { return clock_.Now() - FakeClock().Now(); }

  int questions = 0;
  std::vector<Nanos> sleeps;
  absl::Status failure;

 private:
  FakeClock clock_;
};

TEST(PollTest, WhatIsReachedNeedsNoSleep) {
  PollWorld world;
  EXPECT_TRUE(world.Poll(Nanos(0), seconds(1)).ok());
  EXPECT_EQ(world.questions, 1);
  EXPECT_TRUE(world.Poll(microseconds(40), seconds(1)).ok());
  EXPECT_TRUE(world.sleeps.empty());
}

TEST(PollTest, IsAtMostASixteenthLate) {
  for (Nanos ready : {Nanos(microseconds(200)), Nanos(milliseconds(3)), Nanos(milliseconds(500))}) {
    PollWorld world;
    EXPECT_TRUE(world.Poll(ready, seconds(10)).ok());
    EXPECT_GE(world.Elapsed(), ready);
    EXPECT_LE(world.Elapsed(), ready + ready / 15 + microseconds(7));
    EXPECT_FALSE(world.sleeps.empty());
  }
}

TEST(PollTest, EndsAtTheLimit) {
  PollWorld world;
  EXPECT_TRUE(absl::IsDeadlineExceeded(world.Poll(seconds(10), milliseconds(100))));
  EXPECT_GE(world.Elapsed(), milliseconds(100));
  EXPECT_LE(world.Elapsed(), milliseconds(100) + microseconds(2));
}

TEST(PollTest, ALimitOfNothingAsksOnce) {
  PollWorld late;
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.Poll(seconds(1), Nanos(0))));
  EXPECT_EQ(late.questions, 1);
  PollWorld ready;
  EXPECT_TRUE(ready.Poll(Nanos(0), Nanos(0)).ok());
}

TEST(PollTest, AnErrorEndsIt) {
  PollWorld world;
  world.failure = absl::InternalError("context lost");
  EXPECT_EQ(world.Poll(seconds(1), seconds(10)), world.failure);
  EXPECT_EQ(world.questions, 1);
}

}  // namespace
}  // namespace tcgemm
