#include "server/rpc/peer_slots.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tcgemm {
namespace {

using ::testing::HasSubstr;

TEST(PeerSlotsTest, OnePeerHasAtMostHalf) {
  PeerSlots slots(4, "streams");
  auto first = slots.Take("a").value();
  auto second = slots.Take("a").value();
  const absl::Status third = slots.Take("a").status();
  EXPECT_EQ(third.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(third.message()), HasSubstr("this peer has 2 of the 4 streams"));
  auto other = slots.Take("b").value();
  auto another = slots.Take("b").value();
  EXPECT_THAT(std::string(slots.Take("c").status().message()), HasSubstr("already 4 streams"));
  first.Reset();
  first.Reset();  // once is enough
  EXPECT_FALSE(slots.Take("b").ok());
  EXPECT_TRUE(slots.Take("a").ok()) << "and given back at once";
  EXPECT_TRUE(slots.Take("c").ok());
}

TEST(PeerSlotsTest, ASlotMovesAndReturnsOnce) {
  PeerSlots slots(2, "transfers");
  PeerSlots::Slot kept;
  {
    PeerSlots::Slot slot = slots.Take("a").value();
    kept = std::move(slot);
  }
  EXPECT_FALSE(slots.Take("a").ok());
  kept = slots.Take("b").value();
  EXPECT_TRUE(slots.Take("a").ok());
}

TEST(PeerSlotsTest, ARefusedPeerLeavesNothing) {
  PeerSlots slots(2, "streams");
  std::vector<PeerSlots::Slot> held;
  held.push_back(slots.Take("a").value());
  held.push_back(slots.Take("b").value());
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(slots.Take(std::to_string(i)).ok());
  held.clear();
  EXPECT_TRUE(slots.Take("a").ok());
}

}  // namespace
}  // namespace tcgemm
