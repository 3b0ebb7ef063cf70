#include "server/engine/notable_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace tcgemm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Nanos kSlow = std::chrono::seconds(1);

NotableCall Call(const std::string& message, absl::StatusCode code = absl::StatusCode::kOk) {
  return {.method = "Matmul", .code = code, .message = message};
}

std::vector<std::string> Messages(const NotableCalls::Kind& kind) {
  std::vector<std::string> messages;
  for (const auto& call : kind.calls) messages.push_back(call->message);
  return messages;
}

TEST(NotableCallsTest, WantsWhatFailedAndWhatTookLonger) {
  const NotableCalls calls(kSlow);
  EXPECT_FALSE(calls.Wants(absl::StatusCode::kOk, kSlow));
  EXPECT_TRUE(calls.Wants(absl::StatusCode::kOk, kSlow + Nanos(1)));
  EXPECT_TRUE(calls.Wants(absl::StatusCode::kCancelled, Nanos(0)));
  EXPECT_EQ(calls.slow(), kSlow);
}

TEST(NotableCallsTest, KeepsTheTwoKindsApartNewestFirst) {
  NotableCalls calls(kSlow);
  EXPECT_THAT(calls.Read().slow.calls, IsEmpty());
  EXPECT_THAT(calls.Read().failed.calls, IsEmpty());
  calls.Add(Call("a"));
  calls.Add(Call("b", absl::StatusCode::kInternal));
  calls.Add(Call("c"));
  const NotableCalls::Snapshot now = calls.Read();
  EXPECT_THAT(Messages(now.slow), ElementsAre("c", "a"));
  EXPECT_THAT(Messages(now.failed), ElementsAre("b"));
  EXPECT_EQ(now.slow.count, 2u);
  EXPECT_EQ(now.failed.count, 1u);
}

TEST(NotableCallsTest, TheOldestGoAtAnyCount) {
  NotableCalls calls(kSlow);
  for (size_t i = 1; i <= 3 * NotableCalls::kKept; ++i) {
    calls.Add(Call(std::to_string(i), absl::StatusCode::kAborted));
    const NotableCalls::Kind failed = calls.Read().failed;
    ASSERT_EQ(failed.count, i);
    ASSERT_EQ(failed.calls.size(), std::min(i, NotableCalls::kKept));
    for (size_t age = 0; age < failed.calls.size(); ++age) {
      ASSERT_EQ(failed.calls[age]->message, std::to_string(i - age));
    }
  }
}

TEST(NotableCallsTest, TextsAreShortLines) {
  NotableCalls calls(kSlow);
  NotableCall call = Call(std::string(5000, 'm'), absl::StatusCode::kInternal);
  call.caller = "cert:a\nb";
  calls.Add(call);
  const auto kept = calls.Read().failed.calls.at(0);
  EXPECT_EQ(kept->message.size(), NotableCalls::kMaxTextBytes);
  EXPECT_EQ(kept->caller, "cert:a?b");
}

TEST(ShortLineTest, CutsBetweenCharacters) {
  EXPECT_EQ(ShortLine("", 10), "");
  EXPECT_EQ(ShortLine("0123456789", 10), "0123456789");
  EXPECT_EQ(ShortLine("0123456789a", 10), "0123456…");
  EXPECT_EQ(ShortLine("äöüßäö", 12), "äöüßäö");
  EXPECT_EQ(ShortLine("äöüßäö!", 12), "äöüß…");
  EXPECT_EQ(ShortLine("aäöüßä!", 11), "aäöü…");  // in the middle of a character
  EXPECT_EQ(ShortLine("\x80\x80\x80\x80\x80", 4), "…");
  EXPECT_EQ(ShortLine("a\tb\r\n\x7f\x1b[0m", 20), "a?b????[0m");
}

TEST(NotableCallsTest, ManyThreads) {
  NotableCalls calls(kSlow);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        calls.Add(Call("x", i % 2 == 0 ? absl::StatusCode::kOk : absl::StatusCode::kAborted));
        if (i % 50 == 0) calls.Read();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(calls.Read().slow.count, 1000u);
  EXPECT_EQ(calls.Read().failed.count, 1000u);
}

}  // namespace
}  // namespace tcgemm
