#include "server/rpc/stream_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace tcgemm {
namespace {

using testing::HasSubstr;

TEST(StreamBudgetTest, TakesUntilTheBytesAreUsedUp) {
  StreamBudget budget(100);
  EXPECT_EQ(budget.bytes(), 100u);
  auto first = budget.Take(60);
  ASSERT_TRUE(first.ok());
  const auto refused = budget.Take(41);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("1 other streams have 60 of the 100"));
  auto second = budget.Take(40);
  ASSERT_TRUE(second.ok());
  first->Reset();
  first->Reset();  // once is enough
  EXPECT_FALSE(budget.Take(61).ok());
  EXPECT_TRUE(budget.Take(60).ok()) << "and it is returned at once";
  EXPECT_TRUE(budget.Take(60).ok());
}

TEST(StreamBudgetTest, AShareMovesAndReturnsOnce) {
  StreamBudget budget(100);
  {
    StreamBudget::Share kept;
    {
      StreamBudget::Share share = budget.Take(70).value();
      kept = std::move(share);
    }
    EXPECT_FALSE(budget.Take(31).ok());
    kept = budget.Take(30).value();  // the 70 are back
    EXPECT_TRUE(budget.Take(70).ok());
  }
  EXPECT_TRUE(budget.Take(100).ok());
}

}  // namespace
}  // namespace tcgemm
