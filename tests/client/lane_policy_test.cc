#include "client/lane_policy.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tcgemm::client {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(LanePolicyTest, WhatIsSmallGoesOverOne) {
  EXPECT_EQ(AutomaticLanes(0, 64), 1);
  EXPECT_EQ(AutomaticLanes(kMiB, 64), 1);
  EXPECT_EQ(AutomaticLanes(64 * kMiB - 1, 15), 1);
  EXPECT_EQ(AutomaticLanes(64 * kMiB, 15), 4);
  EXPECT_EQ(AutomaticLanes(16 * kMiB - 1, 16), 1);
  EXPECT_EQ(AutomaticLanes(16 * kMiB, 16), 4);
}

TEST(LanePolicyTest, OneForEveryTwoCores) {
  EXPECT_EQ(AutomaticLanes(1024 * kMiB, 1), 1);
  EXPECT_EQ(AutomaticLanes(1024 * kMiB, 2), 1);
  EXPECT_EQ(AutomaticLanes(1024 * kMiB, 3), 1);
  EXPECT_EQ(AutomaticLanes(1024 * kMiB, 4), 2);
  EXPECT_EQ(AutomaticLanes(64 * kMiB, 4), 2);
  EXPECT_EQ(AutomaticLanes(64 * kMiB - 1, 4), 1);
  EXPECT_EQ(AutomaticLanes(1024 * kMiB, 7), 3);
  EXPECT_EQ(AutomaticLanes(1024 * kMiB, 64), kMostLanes);
  EXPECT_EQ(AutomaticLanes(SIZE_MAX, 64), kMostLanes);
  EXPECT_EQ(AutomaticLanes(SIZE_MAX, 0), 1);
}

TEST(LanePolicyTest, OneForEvery16MiB) {
  EXPECT_EQ(AutomaticLanes(80 * kMiB - 1, 15), 4);
  EXPECT_EQ(AutomaticLanes(80 * kMiB, 15), 5);
  EXPECT_EQ(AutomaticLanes(112 * kMiB, 15), 7);
}

TEST(LanePolicyTest, OneForEvery4MiBOnManyCores) {
  EXPECT_EQ(AutomaticLanes(20 * kMiB - 1, 16), 4);
  EXPECT_EQ(AutomaticLanes(20 * kMiB, 16), 5);
  EXPECT_EQ(AutomaticLanes(32 * kMiB - 1, 64), 7);
  EXPECT_EQ(AutomaticLanes(32 * kMiB, 64), kMostLanes);
}

TEST(LanePolicyTest, NeverFewerForMore) {
  for (const int cores : {8, 16, 64}) {
    int last = 1;
    for (size_t bytes = kMiB; bytes < 2048 * kMiB; bytes += 3 * kMiB) {
      const int lanes = AutomaticLanes(bytes, cores);
      EXPECT_GE(lanes, last);
      last = lanes;
    }
    EXPECT_EQ(last, std::min(kMostLanes, cores / 2));
  }
}

TEST(LanePolicyTest, ANumberIsThatNumber) {
  for (int lanes = 1; lanes <= kMostLanes; ++lanes) EXPECT_EQ(LanesFor(lanes, 1), lanes);
  EXPECT_EQ(LanesFor(kAutomaticLanes, 1), 1);
}

TEST(LanePolicyTest, ChecksTheNumber) {
  EXPECT_TRUE(CheckLanes(0).ok());
  EXPECT_TRUE(CheckLanes(kMostLanes).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckLanes(-1)));
  EXPECT_TRUE(absl::IsInvalidArgument(CheckLanes(kMostLanes + 1)));
}

}  // namespace
}  // namespace tcgemm::client
