#include "server/rpc/receive_budget.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tcgemm {
namespace {

class ReceiveBudgetTest : public ::testing::Test {
 protected:
  // Takes a share for `peer`, whose turn appends `name` to turns_.
  ReceiveBudget::Outcome Take(ReceiveBudget& budget, const std::string& peer,
                              const std::string& name) {
    return budget.Take(peer, [this, name] { turns_.push_back(name); });
  }

  std::vector<std::string> turns_;
};

TEST_F(ReceiveBudgetTest, GrantsUpToItsShares) {
  ReceiveBudget budget(2);
  EXPECT_TRUE(Take(budget, "a", "a1").granted);
  EXPECT_TRUE(Take(budget, "b", "b1").granted);
  const auto third = Take(budget, "c", "c1");
  EXPECT_FALSE(third.granted);
  EXPECT_NE(third.wait_id, 0u);
  EXPECT_EQ(budget.used(), 2);
  EXPECT_EQ(budget.waiting(), 1);
  EXPECT_TRUE(turns_.empty()) << "a granted share calls nobody";
}

TEST_F(ReceiveBudgetTest, ServesWaitersInOrder) {
  ReceiveBudget budget(1);
  Take(budget, "a", "a");
  Take(budget, "b", "b");
  Take(budget, "c", "c");
  budget.Return("a");
  EXPECT_EQ(turns_, std::vector<std::string>({"b"}));
  EXPECT_EQ(budget.used(), 1);
  budget.Return("b");
  EXPECT_EQ(turns_, std::vector<std::string>({"b", "c"}));
  budget.Return("c");
  EXPECT_EQ(budget.used(), 0);
  EXPECT_EQ(budget.waiting(), 0);
}

TEST_F(ReceiveBudgetTest, OnePeerHoldsAtMostHalf) {
  ReceiveBudget budget(4);
  EXPECT_TRUE(Take(budget, "greedy", "1").granted);
  EXPECT_TRUE(Take(budget, "greedy", "2").granted);
  EXPECT_FALSE(Take(budget, "greedy", "3").granted);
  // Who waits for its own limit does not hold back others.
  EXPECT_TRUE(Take(budget, "modest", "m").granted);
  budget.Return("modest");
  EXPECT_TRUE(turns_.empty());
  budget.Return("greedy");
  EXPECT_EQ(turns_, std::vector<std::string>({"3"}));
  EXPECT_EQ(budget.used(), 2);
}

TEST_F(ReceiveBudgetTest, APeersOwnCallsKeepTheirOrder) {
  ReceiveBudget budget(4);
  Take(budget, "p", "1");
  Take(budget, "p", "2");
  Take(budget, "p", "3");
  EXPECT_FALSE(Take(budget, "p", "4").granted);
  budget.Return("p");
  budget.Return("p");
  EXPECT_EQ(turns_, std::vector<std::string>({"3", "4"}));
}

TEST_F(ReceiveBudgetTest, ASingleShareGoesToAnyPeer) {
  ReceiveBudget budget(1);
  EXPECT_TRUE(Take(budget, "only", "1").granted);
  budget.Return("only");
  EXPECT_TRUE(Take(budget, "only", "2").granted);
}

TEST_F(ReceiveBudgetTest, CancelledWaitersAreNotServed) {
  ReceiveBudget budget(1);
  Take(budget, "a", "a");
  const auto b = Take(budget, "b", "b");
  Take(budget, "c", "c");
  EXPECT_TRUE(budget.CancelWait(b.wait_id));
  EXPECT_FALSE(budget.CancelWait(b.wait_id));
  EXPECT_FALSE(budget.CancelWait(12345));
  budget.Return("a");
  EXPECT_EQ(turns_, std::vector<std::string>({"c"}));
}

TEST_F(ReceiveBudgetTest, ServedWaitersCannotBeCancelled) {
  ReceiveBudget budget(1);
  Take(budget, "a", "a");
  const auto b = Take(budget, "b", "b");
  budget.Return("a");
  EXPECT_FALSE(budget.CancelWait(b.wait_id));
}

TEST_F(ReceiveBudgetTest, ATurnMayTakeAgain) {
  ReceiveBudget budget(1);
  Take(budget, "a", "a");
  budget.Take("b", [&] { Take(budget, "b", "again"); });
  budget.Return("a");  // would hang if turns ran under the lock
  EXPECT_EQ(budget.waiting(), 1);
  budget.Return("b");
  EXPECT_EQ(turns_, std::vector<std::string>({"again"}));
}

TEST_F(ReceiveBudgetTest, HasAtLeastOneShare) {
  EXPECT_EQ(ReceiveBudget(0).shares(), 1);
  EXPECT_EQ(ReceiveBudget(7).shares(), 7);
}

}  // namespace
}  // namespace tcgemm
