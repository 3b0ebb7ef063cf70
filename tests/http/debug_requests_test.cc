#include "server/http/debug_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>

namespace tcgemm {
namespace {

using std::chrono::milliseconds;
using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

NotableCall SlowCall() {
  std::array<Nanos, kStageCount> stages{};
  stages[static_cast<size_t>(Stage::kKernel)] = milliseconds(1200);
  return {.ended_unix_ms = 1'764'504'000'123,
          .method = "Matmul",
          .duration = milliseconds(1500),
          .caller = "token:alice",
          .shape = GemmShape{.m = 3, .n = 4, .k = 5},
          .stages = stages,
          .trace_id = "0af7651916cd43dd8448eb211c80319c"};
}

NotableCall FailedCall() {
  return {.ended_unix_ms = 1'764'504'001'000,
          .method = "UploadMatrix",
          .code = absl::StatusCode::kNotFound,
          .message = "no matrix \"w\" <b>\xff",
          .duration = std::chrono::microseconds(70),
          .caller = "anonymous"};
}

TEST(DebugRequestsTest, TextForAPerson) {
  NotableCalls calls(milliseconds(1000));
  calls.Add(SlowCall());
  calls.Add(FailedCall());
  const std::string text = DebugRequestsText(calls);
  EXPECT_THAT(text, HasSubstr("Slow (answered, after more than 1s): 1 since the start\n\n"
                              "2025-11-30T12:00:00.123Z  Matmul  OK  1500.000 ms  token:alice\n"
                              "    m 3, n 4, k 5\n"
                              "    ms: receive 0.000, decode 0.000, queue 0.000, copy_in 0.000, "
                              "kernel 1200.000, verify 0.000, copy_out 0.000, send 0.000\n"
                              "    trace 0af7651916cd43dd8448eb211c80319c\n"));
  EXPECT_THAT(text, HasSubstr("Failed: 1 since the start\n\n"
                              "2025-11-30T12:00:01.000Z  UploadMatrix  NOT_FOUND  0.070 ms  "
                              "anonymous\n    no matrix \"w\" <b>"));
}

TEST(DebugRequestsTest, NothingYet) {
  const NotableCalls calls(milliseconds(250));
  EXPECT_THAT(DebugRequestsText(calls), HasSubstr("more than 250ms): 0 since the start\n"));
  EXPECT_EQ(Json::parse(DebugRequestsJson(calls)), Json::parse(R"({
      "slow_request_ms": 250, "kept": 64,
      "slow": {"count": 0, "calls": []}, "failed": {"count": 0, "calls": []}})"));
}

TEST(DebugRequestsTest, JsonForPrograms) {
  NotableCalls calls(milliseconds(1000));
  calls.Add(SlowCall());
  calls.Add(FailedCall());
  const Json json = Json::parse(DebugRequestsJson(calls));
  const Json slow = json["slow"]["calls"][0];
  EXPECT_EQ(slow["time"], "2025-11-30T12:00:00.123Z");
  EXPECT_EQ(slow["duration_ms"], 1500);
  EXPECT_EQ(slow["stages_ms"]["kernel"], 1200);
  EXPECT_EQ(slow["m"], 3);
  EXPECT_EQ(slow["trace_id"], "0af7651916cd43dd8448eb211c80319c");
  const Json failed = json["failed"]["calls"][0];
  EXPECT_EQ(failed["code"], "NOT_FOUND");
  EXPECT_EQ(failed["message"], "no matrix \"w\" <b>\xef\xbf\xbd");
  EXPECT_FALSE(failed.contains("m"));
  EXPECT_FALSE(failed.contains("stages_ms"));
  EXPECT_FALSE(failed.contains("trace_id"));
}

TEST(DebugRequestsTest, SaysHowManyAreKept) {
  NotableCalls calls(milliseconds(1000));
  for (size_t i = 0; i < NotableCalls::kKept; ++i) calls.Add(FailedCall());
  EXPECT_THAT(DebugRequestsText(calls), Not(HasSubstr("the last 64\n")));
  calls.Add(FailedCall());
  EXPECT_THAT(DebugRequestsText(calls), HasSubstr("Failed: 65 since the start, the last 64\n"));
  EXPECT_EQ(Json::parse(DebugRequestsJson(calls))["failed"]["calls"].size(), 64u);
}

TEST(IsOwnHostTest, AnAddressOrItsOwnNameAndNoOther) {
  for (const char* good : {"", "127.0.0.1", "127.0.0.1:9464", "localhost:80", "LocalHost",
                           "[::1]:9464", "::1", "10.1.2.3:1", "node7:9464", "NODE7"}) {
    EXPECT_TRUE(IsOwnHost(good, "node7")) << good;
  }
  for (const char* bad : {"rebound.example", "rebound.example:9464", "localhost.example",
                          "127.0.0.1.example:80", ":", "[x]:1", "999.1.1.1"}) {
    EXPECT_FALSE(IsOwnHost(bad, "node7")) << bad;
  }
}

}  // namespace
}  // namespace tcgemm
