#include "server/security/poller.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace tcgemm {
namespace {

TEST(PollerTest, RepeatsUntilItEnds) {
  std::promise<void> third;
  std::atomic<int> count{0};
  {
    const Poller poller("poller-test", std::chrono::milliseconds(1), [&] {
      if (count.fetch_add(1) == 2) third.set_value();
    });
    third.get_future().wait();
  }
  const int at_the_end = count.load();
  EXPECT_GE(at_the_end, 3);
  EXPECT_EQ(count.load(), at_the_end);  // no thread is left
}

TEST(PollerTest, DoesNotWaitForTheNextTime) {
  std::atomic<int> count{0};
  {
    const Poller poller("poller-test", std::chrono::hours(20), [&] { ++count; });
  }
  EXPECT_EQ(count.load(), 0);
}

}  // namespace
}  // namespace tcgemm
