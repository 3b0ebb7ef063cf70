#include "server/engine/due_order.h"

#include <gtest/gtest.h>

#include <string>

namespace tcgemm {
namespace {

TimePoint At(int64_t ns) { return TimePoint(Nanos(ns)); }

TEST(DueOrderTest, GivesOutWhatIsDueFirstThingsFirst) {
  DueOrder<std::string> order;
  order.Add(At(30), "c");
  order.Add(At(10), "a");
  order.Add(At(20), "b");
  EXPECT_EQ(order.TakeDue(At(9)), std::nullopt);
  EXPECT_EQ(order.TakeDue(At(20)), "a");
  EXPECT_EQ(order.TakeDue(At(20)), "b");
  EXPECT_EQ(order.TakeDue(At(20)), std::nullopt);
  EXPECT_EQ(order.size(), 1u);
  EXPECT_EQ(order.TakeDue(At(30)), "c");
  EXPECT_EQ(order.TakeDue(At(99)), std::nullopt);
}

TEST(DueOrderTest, WhatWasRemovedIsNotGivenOut) {
  DueOrder<int> order;
  const auto first = order.Add(At(10), 1);
  order.Add(At(10), 2);
  order.Remove(first);
  EXPECT_EQ(order.TakeDue(At(10)), 2);
  EXPECT_EQ(order.TakeDue(At(10)), std::nullopt);
}

// Counted in steps, not in time: 100,000 things that are not due cost nothing.
TEST(DueOrderTest, LooksAtNothingThatIsNotDue) {
  constexpr int kThings = 100'000;
  DueOrder<int> order;
  for (int i = 0; i < kThings; ++i) {
    order.Add(At(1'000'000 + i), i);
    EXPECT_EQ(order.TakeDue(At(0)), std::nullopt);
  }
  EXPECT_EQ(order.looks(), kThings) << "one look at the first, each time";
  for (int i = 0; i < kThings; ++i) EXPECT_EQ(order.TakeDue(At(1'000'000 + i)), i);
  EXPECT_EQ(order.looks(), 2 * kThings);
}

}  // namespace
}  // namespace tcgemm
