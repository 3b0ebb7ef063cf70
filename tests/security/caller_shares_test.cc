#include "server/security/caller_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tcgemm {
namespace {

using ::testing::HasSubstr;

const Caller kAlice = {.identity = "token:alice"};
const Caller kBob = {.identity = "token:bob"};

TEST(CallerSharesTest, CallsOfEachCallerAreCounted) {
  CallerShares shares({.max_inflight = 2});
  auto first = shares.Start(kAlice);
  auto second = shares.Start(kAlice);
  ASSERT_TRUE(first.ok() && second.ok());
  const absl::Status third = shares.Start(kAlice).status();
  EXPECT_TRUE(absl::IsResourceExhausted(third));
  EXPECT_THAT(std::string(third.message()),
              HasSubstr("2 calls in flight, limit 2 (--max-inflight-per-caller)"));
  EXPECT_TRUE(shares.Start(kBob).ok());
  first->Reset();
  first->Reset();
  EXPECT_TRUE(shares.Start(kAlice).ok());
}

// Who reads an answer calls again, before the call has ended here.
TEST(CallerSharesTest, AnAnsweredCallIsNotInFlight) {
  CallerShares shares({.max_inflight = 2});
  auto first = shares.Start(kAlice);
  auto second = shares.Start(kAlice);
  first->NoteAnswer();
  first->NoteAnswer();
  auto third = shares.Start(kAlice);
  EXPECT_TRUE(third.ok()) << third.status();
  EXPECT_FALSE(shares.Start(kAlice).ok());
  // A caller that reads no answers does not get on for ever.
  second->NoteAnswer();
  third->NoteAnswer();
  std::vector<CallerShares::Share> unread;
  absl::StatusOr<CallerShares::Share> next = shares.Start(kAlice);
  while (next.ok() && unread.size() < 1000) {
    next->NoteAnswer();
    unread.push_back(*std::move(next));
    next = shares.Start(kAlice);
  }
  EXPECT_EQ(unread.size(), static_cast<size_t>(CallerShares::kMostAnswered + 2 - 3));
  EXPECT_THAT(std::string(next.status().message()), HasSubstr("2 calls in flight, limit 2"));
  first->Reset();
  EXPECT_TRUE(shares.Start(kAlice).ok());
  second->Reset();
  third->Reset();
  unread.clear();
  EXPECT_EQ(shares.callers(), 0u);
}

TEST(CallerSharesTest, NothingIsLeftOfCallersThatAreGone) {
  CallerShares shares({.max_inflight = 1, .queue_bytes = 10});
  {
    auto share = shares.Start(kAlice);
    ASSERT_TRUE(share->AddBytes(10).ok());
    EXPECT_FALSE(shares.Start(kAlice).ok());
    EXPECT_EQ(shares.callers(), 1u);
    const CallerShares::Share moved = *std::move(share);
    EXPECT_EQ(shares.callers(), 1u);
  }
  EXPECT_EQ(shares.callers(), 0u);
  EXPECT_TRUE(shares.Start(kAlice).ok());
}

TEST(CallerSharesTest, BytesAreCountedAsTheyBecomeKnown) {
  CallerShares shares({.queue_bytes = 100});
  auto first = shares.Start(kAlice);
  auto second = shares.Start(kAlice);
  ASSERT_TRUE(first->AddBytes(60).ok());
  const absl::Status more = second->AddBytes(41);
  EXPECT_TRUE(absl::IsResourceExhausted(more));
  EXPECT_THAT(
      std::string(more.message()),
      HasSubstr("hold 60 bytes of operands and results, this one needs 41, limit 100 (--queue"));
  ASSERT_TRUE(second->AddBytes(40).ok());
  // Before its payload comes.
  EXPECT_TRUE(absl::IsResourceExhausted(shares.Start(kAlice).status()));
  EXPECT_TRUE(shares.Start(kBob)->AddBytes(100).ok());
  first->Reset();
  EXPECT_TRUE(shares.Start(kAlice)->AddBytes(60).ok());
}

TEST(CallerSharesTest, WhatNeverFitsIsKnown) {
  CallerShares shares({.queue_bytes = 100});
  EXPECT_FALSE(shares.IsBeyondLimit(100));
  EXPECT_TRUE(shares.IsBeyondLimit(101));
  EXPECT_FALSE(shares.Start(kAlice)->AddBytes(~size_t{0}).ok());
  EXPECT_FALSE(CallerShares({}).IsBeyondLimit(~size_t{0}));
}

TEST(CallerSharesTest, LimitsMayChangeWhileCallsAreUnderWay) {
  CallerShares shares({});
  auto first = shares.Start(kAlice);
  auto second = shares.Start(kAlice);
  ASSERT_TRUE(first->AddBytes(1000).ok());
  shares.SetLimits({.max_inflight = 1, .queue_bytes = 10});
  EXPECT_FALSE(shares.Start(kAlice).ok());
  first->Reset();
  EXPECT_FALSE(shares.Start(kAlice).ok());
  EXPECT_FALSE(second->AddBytes(11).ok());
  EXPECT_TRUE(second->AddBytes(10).ok());
  second->Reset();
  EXPECT_TRUE(shares.Start(kAlice).ok());
}

TEST(CallerSharesTest, WithoutAShareNothingIsCounted) {
  CallerShares::Share none;
  EXPECT_TRUE(none.AddBytes(5).ok());
}

}  // namespace
}  // namespace tcgemm
