#include "server/rpc/call_deadline.h"

#include <gtest/gtest.h>

namespace tcgemm {
namespace {

const TimePoint kStart(std::chrono::seconds(1));

TEST(CallDeadlineTest, ACancelJustBeforeTheDeadlineIsTheDeadline) {
  const TimePoint deadline = kStart + std::chrono::seconds(10);
  EXPECT_FALSE(IsNearDeadline(kStart, deadline, deadline - std::chrono::milliseconds(201)));
  EXPECT_TRUE(IsNearDeadline(kStart, deadline, deadline - std::chrono::milliseconds(200)));
  const TimePoint soon = kStart + std::chrono::milliseconds(10);
  EXPECT_TRUE(IsNearDeadline(kStart, soon, soon - std::chrono::milliseconds(5)));
  EXPECT_FALSE(IsNearDeadline(kStart, soon, soon - std::chrono::milliseconds(6)));
  EXPECT_FALSE(IsNearDeadline(kStart, kInfiniteFuture, kInfiniteFuture - Nanos(1)));
}

TEST(CallDeadlineTest, AfterDoesNotOverflow) {
  EXPECT_EQ(After(kStart, Nanos(5)), kStart + Nanos(5));
  EXPECT_EQ(After(kInfiniteFuture - Nanos(1), Nanos(5)), kInfiniteFuture);
}

}  // namespace
}  // namespace tcgemm
