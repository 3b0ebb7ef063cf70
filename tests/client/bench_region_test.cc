// bench --shared-memory, against the server itself.
#include "client/cli/bench_region.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "client/cli/bench.h"
#include "client/cli/bench_product.h"
#include "tests/rpc/region_client.h"
#include "tests/rpc/rpc_fixture.h"

namespace tcgemm::client {
namespace {

class BenchRegionTest : public testing::Test {
 protected:
  BenchRegionTest() {
    RpcOptions options;
    options.listen = {address()};
    fixture_ = std::make_unique<RpcFixture>(options, FakeDeviceOptions{},
                                            std::make_unique<CountingEvents>(),
                                            SharedRegionLimits{.total_bytes = size_t{1} << 20});
  }
  ~BenchRegionTest() override {
    while (fixture_->engine->regions().used_bytes() != 0) std::this_thread::yield();
    EXPECT_EQ(fixture_->engine->residents().stats().matrices, 0);
  }
  std::string address() const { return "unix:" + folder_.path("s"); }
  RegionBenchOptions Options(bool resident) const {
    return {.server = {.server = address()},
            .shape = {.m = 20, .n = 30, .k = 40},
            .transpose_a = true,
            .resident = resident,
            .clients = 3,
            .connections = 2,
            .timeout = std::chrono::seconds(20)};
  }

  SocketFolder folder_;
  std::unique_ptr<RpcFixture> fixture_;
};

TEST_F(BenchRegionTest, EveryClientHasAResultOfItsOwn) {
  for (const bool resident : {false, true}) {
    auto product = CreateRegionProduct(Options(resident));
    ASSERT_TRUE(product.ok()) << product.status();
    EXPECT_FALSE((*product)->ProveOne().value().has_value()) << "before any call";
    for (const int client : {2, 0, 1, 2}) {
      const CallOutcome outcome = (*product)->Call(client);
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    }
    const auto proof = (*product)->ProveOne();
    ASSERT_TRUE(proof.ok() && proof->has_value());
    EXPECT_TRUE((*proof)->ok) << (*proof)->text;
  }
}

TEST_F(BenchRegionTest, AShapeBeyondTheBudgetIsAnError) {
  RegionBenchOptions options = Options(false);
  options.shape.m = 20'000;
  EXPECT_TRUE(absl::IsResourceExhausted(CreateRegionProduct(options).status()));
}

TEST_F(BenchRegionTest, TheBenchSaysWhichWayItWent) {
  for (const bool resident : {false, true}) {
    const BenchOptions options{.shape = "20x30x40",
                               .shared_memory = true,
                               .resident = resident,
                               .clients = 3,
                               .requests = 50,
                               .warmup = std::chrono::milliseconds(1)};
    const auto report =
        BenchSharedMemory({.server = address()}, options, std::chrono::seconds(20), {});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->path, resident ? "shared_memory_resident" : "shared_memory");
    EXPECT_EQ(report->load.succeeded, 50);
    EXPECT_EQ(report->exit_code(), ExitCode::kRight);
    EXPECT_NE(BenchJson(*report).find("\"path\":\"shared_memory"), std::string::npos);
  }
}

}  // namespace
}  // namespace tcgemm::client
