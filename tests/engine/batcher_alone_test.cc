// A job that shares its launch with nobody, whatever waits before and behind it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/engine/batcher.h"

namespace tcgemm {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr TimePoint kStart = TimePoint(std::chrono::seconds(1));

TEST(BatcherAloneTest, IsTakenByItself) {
  Batcher batcher({.max_batch = 4, .max_delay = milliseconds(10)});
  for (const JobId id : {1, 2, 3, 4}) {
    batcher.Enqueue({.id = id, .flops = 1, .bytes = 1, .alone = id == 3}, kStart);
  }
  EXPECT_THAT(batcher.Take(kStart).batch, ElementsAre(1, 2)) << "they can grow no more";
  EXPECT_THAT(batcher.Take(kStart).batch, ElementsAre(3)) << "it waits for no window";
  EXPECT_THAT(batcher.Take(kStart).batch, IsEmpty());
  EXPECT_THAT(batcher.Take(kStart + milliseconds(10)).batch, ElementsAre(4));
}

}  // namespace
}  // namespace tcgemm
