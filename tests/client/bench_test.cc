// tcgemm-client bench below its flags: what it calls, what it reports, how it ends.
#include "client/cli/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/cli/bench_report.h"
#include "client/cli/shape.h"
#include "tests/client/naive_server.h"

namespace tcgemm::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr Nanos kTimeout = std::chrono::seconds(20);

// Ten calls and none before them.
BenchOptions Small() {
  return {.shape = "3x5x7", .clients = 2, .requests = 10, .warmup = Nanos(0)};
}

class BenchTest : public testing::Test {
 protected:
  absl::StatusOr<BenchReport> Run(const BenchOptions& options, int connections = 1) {
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < connections; ++i) {
      clients.push_back(Client::Create({.server = server_.address()}).value());
    }
    return Bench(clients, options, kTimeout, {});
  }

  NaiveServer server_;
};

TEST_F(BenchTest, CountsWhatTheServerCounts) {
  BenchOptions options = Small();
  options.warmup = std::chrono::milliseconds(1);
  options.clients = 3;
  const absl::StatusOr<BenchReport> report = Run(options, 2);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->load.succeeded, 10);
  EXPECT_GE(report->warmup_requests, 1);
  EXPECT_EQ(report->warmup_requests + report->load.sent, server_.matmul_calls());
  EXPECT_EQ(report->clients, 3);
  EXPECT_EQ(report->connections, 2);
  EXPECT_EQ(report->load.stages[4].max(), Nanos(5));  // the naive server's kernel time
  ASSERT_TRUE(report->proof.has_value());
  EXPECT_TRUE(report->proof->ok);
  EXPECT_EQ(report->exit_code(), ExitCode::kRight);
}

TEST_F(BenchTest, EveryLayoutAndOutputIsProvenRight) {
  for (const int layout : {0, 1, 2, 3}) {
    BenchOptions options = Small();
    options.transpose_a = layout % 2 == 1;
    options.transpose_b = layout >= 2;
    options.output = layout == 0 ? "bf16" : "fp32";
    const absl::StatusOr<BenchReport> report = Run(options);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->proof->ok) << report->proof->text;
    EXPECT_EQ(report->layout, std::vector<std::string>({"NN", "TN", "NT", "TT"})[layout]);
  }
}

TEST_F(BenchTest, AWrongResultEndsInOne) {
  server_.SpoilResults();
  const absl::StatusOr<BenchReport> report = Run(Small());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->exit_code(), ExitCode::kWrongResult);
  EXPECT_THAT(BenchTable(*report), HasSubstr("WRONG"));
  EXPECT_EQ(nlohmann::json::parse(BenchJson(*report))["ok"], false);
}

TEST_F(BenchTest, RefusalsCountByCodeAndAreNotRetried) {
  server_.FailNext(4, /*RESOURCE_EXHAUSTED*/ 8, "20");
  const absl::StatusOr<BenchReport> report = Run(Small());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->load.sent, 10);
  EXPECT_EQ(report->load.succeeded, 6);
  EXPECT_EQ(report->exit_code(), ExitCode::kRight);  // some were answered, and right
  EXPECT_EQ(nlohmann::json::parse(BenchJson(*report))["errors"],
            nlohmann::json({{"RESOURCE_EXHAUSTED", 4}}));
  EXPECT_THAT(BenchTable(*report), HasSubstr("4 RESOURCE_EXHAUSTED"));
}

TEST_F(BenchTest, WhenAllFailTheirCodesDecide) {
  for (const auto& [code, expected] :
       {std::pair(14, ExitCode::kUnreachable), std::pair(4, ExitCode::kUnreachable),
        std::pair(13, ExitCode::kOtherStatus)}) {
    server_.FailNext(1'000'000, code, "");
    const absl::StatusOr<BenchReport> report = Run(Small());
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->load.succeeded, 0);
    EXPECT_EQ(report->exit_code(), expected) << code;
    EXPECT_FALSE(report->proof.has_value());
    EXPECT_TRUE(nlohmann::json::parse(BenchJson(*report))["check"].is_null());
    EXPECT_THAT(BenchTable(*report), HasSubstr("no result to check"));
  }
}

TEST_F(BenchTest, BadOptionsCallNobodyAndNameTheFlag) {
  const auto refusal = [&](auto change) {
    BenchOptions options = Small();
    change(options);
    const absl::Status status = Run(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](auto& o) { o.shape = "3x4"; }), HasSubstr("--shape '3x4'"));
  EXPECT_THAT(refusal([](auto& o) { o.clients = 0; }), HasSubstr("--clients 0"));
  EXPECT_THAT(refusal([](auto& o) { o.clients = 1025; }), HasSubstr("1 to 1024"));
  EXPECT_THAT(refusal([](auto& o) { o.connections = 3; }), HasSubstr("--clients 2"));
  EXPECT_THAT(refusal([](auto& o) { o.rate = -1; }), HasSubstr("--rate -1"));
  EXPECT_THAT(refusal([](auto& o) { o.rate = 1e7; }), HasSubstr("at most 1e+06"));
  EXPECT_THAT(refusal([](auto& o) { o.requests = -1; }), HasSubstr("--requests -1"));
  // Two terabytes.
  EXPECT_THAT(refusal([](auto& o) {
                o.shape = "500000x500000x1";
                o.clients = 1024;
              }),
              AllOf(HasSubstr("--clients 1024"), HasSubstr("this machine's")));
  EXPECT_EQ(server_.matmul_calls(), 0);
}

TEST_F(BenchTest, TheCommandEndsAsTheReportSays) {
  GlobalOptions global = {.server = server_.address(), .timeout = kTimeout};
  EXPECT_EQ(RunBench(global, Small()), ExitCode::kRight);
  BenchOptions bad = Small();
  bad.shape = "none";
  EXPECT_EQ(RunBench(global, bad), ExitCode::kUsage);
  server_.SpoilResults();
  EXPECT_EQ(RunBench(global, Small()), ExitCode::kWrongResult);
  global.server = "127.0.0.1:1";
  EXPECT_EQ(RunBench(global, Small()), ExitCode::kUnreachable);
  EXPECT_EQ(RunBench(global, bad), ExitCode::kUsage);  // said without asking anybody
  global.server = "nonsense";
  EXPECT_EQ(RunBench(global, Small()), ExitCode::kUsage);
}

TEST(BenchReportTest, RatesAreOfWhatSucceeded) {
  BenchReport report = {.shape = {.m = 1000, .n = 500, .k = 250}, .output = DType::kFp32};
  report.load.sent = 30;
  report.load.succeeded = 20;
  report.load.batched_with_sum = 50;
  report.load.elapsed = std::chrono::seconds(2);
  EXPECT_DOUBLE_EQ(report.requests_per_second(), 10);
  EXPECT_DOUBLE_EQ(report.sent_gbytes_per_second(), 10 * 2 * 250 * 1500 / 1e9);
  EXPECT_DOUBLE_EQ(report.received_gbytes_per_second(), 10 * 4 * 500e3 / 1e9);
  EXPECT_DOUBLE_EQ(report.tflops(), 10 * 2 * 125e6 / 1e12);
  EXPECT_EQ(nlohmann::json::parse(BenchJson(report))["mean_batched_with"], 2.5);
}

TEST(BenchReportTest, JsonHasEveryField) {
  BenchReport report = {.server = "s:1", .device = "cpu", .rate = 5};
  for (int i = 1; i <= 1000; ++i) report.load.latency.Record(std::chrono::microseconds(i));
  report.load.unsent = 7;
  report.load.gave_up = true;
  const auto json = nlohmann::json::parse(BenchJson(report));
  for (const char* key : {"server",
                          "device",
                          "m",
                          "n",
                          "k",
                          "layout",
                          "output",
                          "loop",
                          "rate",
                          "clients",
                          "connections",
                          "warmup_requests",
                          "sent",
                          "succeeded",
                          "unsent",
                          "gave_up",
                          "errors",
                          "elapsed_s",
                          "latency_ms",
                          "max_send_delay_ms",
                          "requests_per_s",
                          "sent_gbytes_per_s",
                          "received_gbytes_per_s",
                          "tflops",
                          "mean_batched_with",
                          "stages_p50_ms",
                          "check",
                          "ok"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["loop"], "open");
  EXPECT_NEAR(json["latency_ms"]["p50"].get<double>(), 0.5, 0.002);
  EXPECT_NEAR(json["latency_ms"]["p99_9"].get<double>(), 0.999, 0.004);
  EXPECT_EQ(json["latency_ms"]["max"], 1.0);
  EXPECT_EQ(json["stages_p50_ms"].size(), 7u);
  EXPECT_THAT(BenchTable(report), AllOf(HasSubstr("open loop, 5 requests/s"),
                                        HasSubstr("unsent      7"), HasSubstr("gave up")));
}

TEST(BenchReportTest, ARunWithoutCallsIsNotRight) {
  EXPECT_EQ(BenchReport().exit_code(), ExitCode::kOtherStatus);
}

TEST(ParseShapeTest, NamesItsFlag) {
  const ProductShape shape = ParseShape("--shape", "512x384x640").value();
  EXPECT_EQ(shape.m, 512);
  EXPECT_EQ(shape.n, 384);
  EXPECT_EQ(shape.k, 640);
  for (const char* text :
       {"", "1x2", "1x2x3x4", "0x1x1", "1x-1x1", "ax1x1", "1x1x1073741825", "40000x40000x40000"}) {
    const absl::Status status = ParseShape("--shape", text).status();
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("--shape '" + std::string(text) + "'"), HasSubstr("2 GiB")));
  }
}

}  // namespace
}  // namespace tcgemm::client
