// /api/status against the registry that /metrics is written from.
#include "server/http/status_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "server/engine/buffer_pool.h"
#include "server/http/metrics.h"

namespace tcgemm {
namespace {

using std::chrono::milliseconds;
using Json = nlohmann::json;

class StatusJsonTest : public ::testing::Test {
 protected:
  Json Status() {
    return Json::parse(StatusJson(
        metrics_.Collect(),
        {.readiness = metrics_.readiness(), .debug_requests = true, .unix_ms = 1'900'000'000'250}));
  }
  void Call(const char* method, absl::StatusCode code, Nanos time) {
    metrics_.OnCallStarted(method);
    metrics_.OnCallEnded(method, code, time);
  }

  Metrics metrics_{{.version = "1.2.3",
                    .commit = "abc\"<",
                    .cuda = "12.8",
                    .backend = "onednn",
                    .device = "cuda:3",
                    .methods = {"Matmul", "Other"}}};
};

TEST_F(StatusJsonTest, SaysWhatRuns) {
  const Json status = Status();
  EXPECT_EQ(status["version"], "1.2.3");
  EXPECT_EQ(status["commit"], "abc\"<");
  EXPECT_EQ(status["cuda"], "12.8");
  EXPECT_EQ(status["backend"], "onednn");
  EXPECT_EQ(status["device"]["name"], "cuda:3");
  EXPECT_EQ(status["debug_requests"], true);
  EXPECT_DOUBLE_EQ(status["time"], 1'900'000'000.25);
  EXPECT_DOUBLE_EQ(status["uptime_seconds"],
                   1'900'000'000.25 - static_cast<double>(status["start_time"]));
}

TEST_F(StatusJsonTest, ReadinessAndWhy) {
  EXPECT_EQ(Status()["readiness"], "device lost");
  metrics_.OnDeviceHealth(true);
  Json status = Status();
  EXPECT_EQ(status["readiness"], "starting");
  EXPECT_EQ(status["device"]["healthy"], true);
  EXPECT_THAT(std::string(status["reason"]), ::testing::HasSubstr("self-test"));
  metrics_.SetReady(true);
  status = Status();
  EXPECT_EQ(status["readiness"], "ready");
  EXPECT_EQ(status["reason"], "");
  metrics_.SetDraining(true);
  metrics_.SetReady(false);
  status = Status();
  EXPECT_EQ(status["readiness"], "draining");
  EXPECT_THAT(std::string(status["reason"]), ::testing::HasSubstr("shutting down"));
}

TEST_F(StatusJsonTest, NothingHasHappenedYet) {
  const Json status = Status();
  EXPECT_EQ(status["requests"], Json::parse(R"({"total": 0,
      "by_method": {"Matmul": {}, "Other": {}}})"));
  EXPECT_EQ(status["batch"],
            Json::parse(R"({"launches": 0, "requests": 0, "mean": null, "coalesced": 0})"));
  EXPECT_EQ(status["tflops"], nullptr);
  EXPECT_EQ(status["latency_seconds"]["by_method"]["Matmul"]["p50"], nullptr);
  EXPECT_EQ(status["verification"], Json::parse(R"({"ok": 0, "mismatch": 0, "skipped": 0})"));
}

TEST_F(StatusJsonTest, CallsByMethodAndCode) {
  Call("Matmul", absl::StatusCode::kOk, milliseconds(1));
  Call("Matmul", absl::StatusCode::kOk, milliseconds(1));
  Call("Matmul", absl::StatusCode::kUnavailable, milliseconds(1));
  Call("Other", absl::StatusCode::kOk, milliseconds(1));
  metrics_.OnCallStarted("Matmul");
  metrics_.OnRejected(RejectReason::kQueue);
  metrics_.OnCallCancelled(Stage::kSend);
  const Json status = Status();
  EXPECT_EQ(status["requests"], Json::parse(R"({"total": 4,
      "by_method": {"Matmul": {"OK": 2, "UNAVAILABLE": 1}, "Other": {"OK": 1}}})"));
  EXPECT_EQ(status["inflight"], 1);
  EXPECT_EQ(status["rejected"]["queue"], 1);
  EXPECT_EQ(status["rejected"]["memory"], 0);
  EXPECT_EQ(status["cancelled"]["send"], 1);
}

TEST_F(StatusJsonTest, LatencyIsTheHistogramOfTheMetrics) {
  for (int i = 0; i < 10; ++i) Call("Matmul", absl::StatusCode::kOk, std::chrono::microseconds(15));
  const Json latency = Status()["latency_seconds"];
  const Json matmul = latency["by_method"]["Matmul"];
  ASSERT_EQ(latency["bounds"].size(), 22u);
  ASSERT_EQ(matmul["cumulative"].size(), 23u);  // +Inf too
  EXPECT_DOUBLE_EQ(latency["bounds"][0], 10e-6);
  EXPECT_EQ(matmul["cumulative"][0], 0);
  EXPECT_EQ(matmul["cumulative"][1], 10);
  EXPECT_EQ(matmul["cumulative"][22], 10);
  EXPECT_EQ(matmul["count"], 10);
  EXPECT_DOUBLE_EQ(matmul["sum"], 150e-6);
  EXPECT_DOUBLE_EQ(matmul["p50"], 15e-6);
  EXPECT_DOUBLE_EQ(matmul["p90"], 19e-6);
  EXPECT_EQ(latency["by_method"]["Other"]["count"], 0);
}

TEST_F(StatusJsonTest, WhatTheDeviceDid) {
  metrics_.StartCounting();
  metrics_.OnQueueChanged(3, 4096);
  for (const int size : {1, 3}) {
    metrics_.OnLaunch({.kernel = KernelId::kCpuPlain,
                       .batch_size = size,
                       .coalesced = size - 1,
                       .flops = 5e11,
                       .kernel_time = milliseconds(250)});
  }
  metrics_.OnCopyIn(100);
  metrics_.OnCopyOut(50);
  metrics_.OnNonfiniteOutput();
  metrics_.OnDeviceError(DeviceErrorKind::kCopy);
  metrics_.OnStage(Stage::kKernel, milliseconds(2));
  metrics_.OnCertificate(1'800'000'000);
  const Json status = Status();
  EXPECT_EQ(status["queue"], Json::parse(R"({"depth": 3, "bytes": 4096})"));
  EXPECT_EQ(status["launches"]["cpu_plain"], 2);
  EXPECT_EQ(status["batch"],
            Json::parse(R"({"launches": 2, "requests": 4, "mean": 2, "coalesced": 2})"));
  EXPECT_EQ(status["flops"], 1'000'000'000'000);
  EXPECT_DOUBLE_EQ(status["kernel_seconds"], 0.5);
  EXPECT_DOUBLE_EQ(status["tflops"], 2);
  EXPECT_EQ(status["transfer_bytes"], Json::parse(R"({"in": 100, "out": 50})"));
  EXPECT_EQ(status["nonfinite_outputs"], 1);
  EXPECT_EQ(status["device_errors"]["copy"], 1);
  EXPECT_EQ(status["device_errors"]["watchdog"], 0);
  EXPECT_EQ(status["stage_seconds"]["kernel"]["count"], 1);
  EXPECT_DOUBLE_EQ(status["stage_seconds"]["kernel"]["sum"], 0.002);
  EXPECT_EQ(status["certificate_expiry"], 1'800'000'000);
}

TEST_F(StatusJsonTest, PoolsAreReadNow) {
  const size_t bytes = 2 * BufferPool::kAlignment;
  BufferPool pool(
      "pinned", MemoryBlock(std::aligned_alloc(4096, bytes), bytes, [](void* p) { std::free(p); }));
  metrics_.WatchPool(&pool);
  const Lease lease = pool.TryLease(10).value();
  const Json status = Status();
  EXPECT_EQ(status["pools"]["pinned"], Json::parse(R"({"used": 4096, "free": 4096})"));
  EXPECT_EQ(status["pools"]["resident"], Json::parse(R"({"used": 0, "free": 0})"));
  EXPECT_EQ(status["resident"], Json::parse(R"({"matrices": 0, "bytes": 0})"));
  EXPECT_GT(status["process"]["resident_memory_bytes"], 0);
  metrics_.WatchPool(nullptr);
}

// Whatever it is given it writes an object: what is missing is 0 or empty.
TEST(StatusJsonOfNothingTest, IsAnObject) {
  const Json status = Json::parse(StatusJson({}, {.readiness = "\xff"}));
  EXPECT_EQ(status["requests"]["total"], 0);
  EXPECT_EQ(status["version"], "");
}

}  // namespace
}  // namespace tcgemm
