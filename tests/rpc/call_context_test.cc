#include "server/rpc/call_context.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

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
  uids.Set(7, {.uid = 1000, .region_socket = "x.regions"});
  ASSERT_TRUE(uids.Find("fd:7").has_value());
  EXPECT_EQ(uids.Find("fd:7")->uid, 1000u);
  EXPECT_EQ(uids.Find("fd:7")->region_socket, "x.regions");
  EXPECT_FALSE(uids.Find("fd:8").has_value());
  EXPECT_FALSE(uids.Find("ipv4:127.0.0.1:7").has_value());
  uids.Set(7, {.uid = 33});  // a later connection on the same fd
  EXPECT_EQ(uids.Find("fd:7")->uid, 33u);
}

struct HeldCall : HeldCalls::Target {
  void OnDrained() override { ++drained; }
  int drained = 0;
};

TEST(HeldCallsTest, EndsThoseThatAreThereOnce) {
  HeldCalls held;
  const auto call = std::make_shared<HeldCall>();
  const auto gone = std::make_shared<HeldCall>();
  ASSERT_TRUE(held.Add(call.get(), call).ok());
  ASSERT_TRUE(held.Add(gone.get(), gone).ok());
  held.Remove(gone.get());
  held.EndAll();
  held.EndAll();
  EXPECT_EQ(call->drained, 1);
  EXPECT_EQ(gone->drained, 0);
  EXPECT_TRUE(absl::IsUnavailable(held.Add(call.get(), call)));
}

TEST(HeldCallsTest, ThereAreOnlySoMany) {
  HeldCalls held;
  std::vector<std::shared_ptr<HeldCall>> calls(HeldCalls::kMaxCalls + 1);
  for (auto& call : calls) call = std::make_shared<HeldCall>();
  for (size_t i = 0; i < HeldCalls::kMaxCalls; ++i) {
    ASSERT_TRUE(held.Add(calls[i].get(), calls[i]).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(held.Add(calls.back().get(), calls.back())));
  held.Remove(calls[3].get());
  EXPECT_TRUE(held.Add(calls.back().get(), calls.back()).ok());
}

}  // namespace
}  // namespace tcgemm
