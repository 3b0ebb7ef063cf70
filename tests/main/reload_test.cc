#include "server/main/reload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tcgemm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(ReloadTest, TheSameChangesNothing) {
  ServerOptions options;
  options.preload = {"w=w.npy"};
  const ReloadPlan plan = PlanReload(options, options, options);
  EXPECT_THAT(plan.changed, IsEmpty());
  EXPECT_THAT(plan.needs_restart, IsEmpty());
  EXPECT_EQ(ToToml(plan.options), ToToml(options));
}

TEST(ReloadTest, SomeFlagsChangeAndTheRestWaits) {
  const ServerOptions now;
  ServerOptions wanted = now;
  wanted.log_level = "debug";
  wanted.max_batch = 8;
  wanted.max_queue_delay_us = 5;
  wanted.max_inflight_per_caller = 3;
  wanted.queue_bytes_per_caller = 4;
  wanted.resident_bytes_per_caller = 5;
  wanted.max_inflight = 7;
  wanted.listen = {"unix:/x"};
  wanted.preload = {"w=w.npy"};
  const ReloadPlan plan = PlanReload(now, now, wanted);
  EXPECT_THAT(plan.changed,
              UnorderedElementsAre("--log-level from \"info\" to \"debug\"",
                                   "--max-batch from 64 to 8", "--max-queue-delay-us from 0 to 5",
                                   "--max-inflight-per-caller from 0 to 3",
                                   "--queue-bytes-per-caller from 0 to 4",
                                   "--resident-bytes-per-caller from 0 to 5"));
  EXPECT_THAT(plan.needs_restart, UnorderedElementsAre("--max-inflight", "--listen", "--preload"));
  EXPECT_EQ(plan.options.max_batch, 8);
  EXPECT_EQ(plan.options.max_inflight, now.max_inflight);
  EXPECT_EQ(plan.options.listen, now.listen);
  // What waits for a restart is said again, what changed is not.
  const ReloadPlan again = PlanReload(now, plan.options, wanted);
  EXPECT_THAT(again.changed, IsEmpty());
  EXPECT_EQ(again.needs_restart, plan.needs_restart);
}

TEST(ReloadTest, BatchesGrowNoLargerThanTheirSlots) {
  ServerOptions started;
  started.max_batch = 16;
  ServerOptions now = started;
  now.max_batch = 4;
  ServerOptions wanted = started;
  EXPECT_EQ(PlanReload(started, now, wanted).options.max_batch, 16);
  wanted.max_batch = 17;
  const ReloadPlan plan = PlanReload(started, now, wanted);
  EXPECT_EQ(plan.options.max_batch, 4);
  EXPECT_THAT(plan.needs_restart, ElementsAre("--max-batch"));
}

}  // namespace
}  // namespace tcgemm
