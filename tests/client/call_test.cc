#include "client/call.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "client/channel.h"
#include "client/matrix_streams.h"
#include "tcgemm/v1/matmul.grpc.pb.h"
#include "tests/client/matrix_server.h"

namespace tcgemm::client {
namespace {

TEST(CallTest, DeadlinesDoNotOverflow) {
  const TimePoint now = Clock::Real()->Now();
  EXPECT_GT(DeadlineIn(Nanos::max()), now);
  EXPECT_GE(DeadlineIn(Nanos(5)), now + Nanos(5));
  EXPECT_LT(DeadlineIn(Nanos(-5)), now + std::chrono::seconds(20));
}

TEST(CallTest, RandomNamesDiffer) {
  std::set<std::string> names;
  for (int i = 0; i < 100; ++i) names.insert(RandomHex());
  EXPECT_EQ(names.size(), 100u);
  for (const std::string& name : names) {
    EXPECT_EQ(name.size(), 32u);
    EXPECT_EQ(name.find_first_not_of("0123456789abcdef"), std::string::npos) << name;
  }
  EXPECT_NE(NewSeed(), NewSeed());
}

TEST(CallTest, WithoutATimeoutNothingIsTried) {
  int attempts = 0;
  const RetryOutcome outcome = CallWithin({}, [&](TimePoint) -> Attempt {
    ++attempts;
    return {};
  });
  EXPECT_TRUE(absl::IsInvalidArgument(outcome.status));
  EXPECT_EQ(attempts, 0);
}

TEST(CallTest, WithoutRetriesTheFirstFailureIsTheLast) {
  int attempts = 0;
  const CallOptions options{.timeout = std::chrono::seconds(20), .retry = false};
  const RetryOutcome outcome = CallWithin(options, [&](TimePoint) -> Attempt {
    ++attempts;
    return {.status = absl::UnavailableError("no"), .pushback = Nanos(1)};
  });
  EXPECT_TRUE(absl::IsUnavailable(outcome.status));
  EXPECT_EQ(attempts, 1);
}

TEST(CallGroupTest, EndsCallsUnderWayAndThoseThatComeLater) {
  MatrixServer server;
  const auto channel = MakeChannel(server.address()).value();
  CallGroup group;
  EXPECT_FALSE(group.cancelled());
  const TimePoint deadline = DeadlineIn(std::chrono::seconds(60));
  {
    // Under way: the server waits for more.
    CallGroup::Context context(&group, deadline);
    v1::UploadMatrixResponse response;
    const auto writer = v1::MatmulService::NewStub(channel)->UploadMatrix(&*context, &response);
    group.Cancel();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(group.cancelled());
  v1::UploadMatrixRequest::Header header;
  const UploadOutcome late =
      SendRanges({.channel = channel, .group = &group, .deadline = deadline}, header, {}, nullptr);
  EXPECT_TRUE(absl::IsCancelled(late.attempt.status)) << late.attempt.status;
  group.Cancel();  // none left
}

}  // namespace
}  // namespace tcgemm::client
