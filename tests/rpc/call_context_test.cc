#include "server/rpc/call_context.h"

#include <gtest/gtest.h>

namespace tcgemm {
namespace {

TEST(CallCounterTest, CountsInAndOut) {
  CallCounter counter;
  EXPECT_TRUE(counter.TryStart(2));
  EXPECT_TRUE(counter.TryStart(2));
  EXPECT_FALSE(counter.TryStart(2));
  EXPECT_FALSE(counter.WaitIdle(Clock::Real()->Now()));
  counter.NoteAdmitted();
  counter.NoteEnded(/*admitted=*/true, absl::StatusCode::kOk);
  counter.NoteEnded(/*admitted=*/false, absl::StatusCode::kUnavailable);
  EXPECT_TRUE(counter.WaitIdle(Clock::Real()->Now()));
  const CallTotals totals = counter.totals();
  EXPECT_EQ(totals.started, 3);
  EXPECT_EQ(totals.admitted, 1);
  EXPECT_EQ(totals.completed, 1);
  EXPECT_EQ(totals.failed, 0);
}

TEST(PeerUidsTest, NamesUnixPeersAndNobodyElse) {
  PeerUids uids;
  uids.Set(7, 1000);
  EXPECT_EQ(uids.CallerOf("fd:7").identity, "uid:1000");
  EXPECT_EQ(uids.CallerOf("fd:8").identity, "anonymous");
  EXPECT_EQ(uids.CallerOf("ipv4:127.0.0.1:7").identity, "anonymous");
  uids.Set(7, 33);  // a later connection on the same fd
  EXPECT_EQ(uids.CallerOf("fd:7").identity, "uid:33");
}

TEST(PeerKeyTest, IsTheHostOrTheUser) {
  EXPECT_EQ(PeerKey("ipv4:10.0.0.1:5555", {}), "ipv4:10.0.0.1");
  EXPECT_EQ(PeerKey("ipv6:[::1]:5555", {}), "ipv6:[::1]");
  EXPECT_EQ(PeerKey("fd:7", {.identity = "uid:5"}), "uid:5");
}

}  // namespace
}  // namespace tcgemm
