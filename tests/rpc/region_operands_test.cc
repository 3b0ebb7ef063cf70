// Operands and results in shared memory: what a request may refer to, and what its layout becomes.
#include "server/rpc/region_operands.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tcgemm/v1/matmul.pb.h"
#include "tests/engine/test_device.h"

namespace tcgemm {
namespace {

using absl::StatusCode;
using Source = OperandFields::Source;

constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kMax32 = std::numeric_limits<int32_t>::max();
constexpr size_t kPage = 4096;

// A is 4x6 at 0 (48 bytes), B 6x5 at 64 (60 bytes), D 4x5 in fp32 at 128 (80 bytes); one page.
class RegionOperandsTest : public testing::Test {
 protected:
  RegionOperandsTest() : store_({.total_bytes = 2 * kPage}, device_.get()) {
    region_ = Open(ann_);
    for (OperandFields* const operand : {&fields_.a, &fields_.b}) {
      operand->present = true;
      operand->dtype = v1::BF16;
      operand->source = Source::kRegion;
      operand->region.name = name();
    }
    fields_.a.rows = 4;
    fields_.a.cols = fields_.b.rows = 6;
    fields_.b.cols = 5;
    fields_.b.region.offset = 64;
    fields_.output_dtype = v1::FP32;
    fields_.output.present = true;
    fields_.output.target = OutputFields::Target::kRegion;
    fields_.output.region.name = name();
    fields_.output.region.offset = 128;
  }

  SharedRegionRef Open(const Caller& caller) {
    std::promise<absl::StatusOr<SharedRegionRef>> promise;
    EXPECT_TRUE(
        store_.Open(caller, kPage, [&](auto opened) { promise.set_value(std::move(opened)); })
            .ok());
    return promise.get_future().get().value();
  }
  std::string name() const { return region_->identity().name; }
  absl::StatusOr<RequestLayout> Validate(RequestFields fields) {
    RegionOperands regions(&store_, ann_);
    const absl::Status found = regions.Find(fields);
    if (!found.ok()) return found;
    return ValidateRequest(fields, /*pitch_alignment=*/64, 1 << 20);
  }
  absl::Status Refused(const std::function<void(RequestFields&)>& change) {
    RequestFields fields = fields_;
    change(fields);
    return Validate(std::move(fields)).status();
  }

  const Caller ann_ = {"uid:1"};
  std::shared_ptr<TestDeviceControl> control_ =
      std::make_shared<TestDeviceControl>(TestDeviceOptions{});
  std::unique_ptr<Device> device_ = CreateTestDevice(control_);
  SharedRegionStore store_;
  SharedRegionRef region_;
  RequestFields fields_;
};

TEST_F(RegionOperandsTest, EverythingLiesWhereTheClientPutIt) {
  const auto layout = Validate(fields_);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->lease_bytes, 0u);
  EXPECT_FALSE(layout->d_in_lease());
  const GemmProblem problem = layout->ProblemIn(nullptr);
  EXPECT_EQ(problem.a.data, region_->data());
  EXPECT_EQ(problem.b.data, region_->data() + 64);
  EXPECT_EQ(problem.d.data, region_->data() + 128);
  EXPECT_EQ(problem.a.ld, 6) << "no pitch of ours";
  EXPECT_EQ(problem.d.ld, 5);
  EXPECT_TRUE(PlanCopies(*layout, nullptr, 2).empty()) << "nothing is copied on the host";
}

TEST_F(RegionOperandsTest, OneInARegionTheOthersElsewhere) {
  RequestFields fields = fields_;
  fields.b.source = Source::kInline;
  fields.b.inline_bytes = 60;
  fields.output = {};
  const auto layout = Validate(fields);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_TRUE(layout->d_in_lease());
  std::vector<std::byte> lease(layout->lease_bytes);
  const GemmProblem problem = layout->ProblemIn(lease.data());
  EXPECT_EQ(problem.a.data, region_->data());
  EXPECT_EQ(problem.b.data, lease.data());
  EXPECT_EQ(problem.b.ld, 64);
  EXPECT_EQ(PlanCopies(*layout, lease.data(), 1).size(), 1u);
}

TEST_F(RegionOperandsTest, AnyLdThatFits) {
  const auto ld = [this](int64_t value, int64_t offset) {
    RequestFields fields = fields_;
    fields.a.ld = value;
    fields.a.region.offset = offset;
    fields.output.region.offset = 0;
    fields.output.target = OutputFields::Target::kNone;
    fields.output.present = false;
    return Validate(fields).status();
  };
  // From the first element to the last: 3·ld + 6 elements.
  EXPECT_TRUE(ld((2048 - 6) / 3, 0).ok());
  EXPECT_EQ(ld((2048 - 6) / 3 + 1, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(ld(6, 4096 - 48).ok());
  EXPECT_EQ(ld(6, 4096 - 46).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ld(5, 0).code(), StatusCode::kInvalidArgument);
}

TEST_F(RegionOperandsTest, LiesAreRefusedInWords) {
  struct Lie {
    std::function<void(RequestFields&)> change;
    std::string words;
  };
  const std::vector<Lie> lies = {
      {[](auto& f) { f.a.region.offset = -2; }, "a.region.offset is -2"},
      {[](auto& f) { f.a.region.offset = 1; }, "multiple of 2"},
      {[](auto& f) { f.output.region.offset = 130; }, "multiple of 4"},
      {[](auto& f) { f.b.region.offset = kMax64 - 1; }, "region's 4096 bytes"},
      {[](auto& f) { f.b.region.offset = kMax64; }, "b.region.offset"},
      {[](auto& f) { f.b.region.offset = 4096; }, "region's 4096 bytes"},
      {[](auto& f) { f.output.region.offset = 4096 - 76; }, "output.region: 20 elements"},
      {[](auto& f) { f.a.rows = f.a.cols = f.a.ld = f.b.rows = kMax32; }, "a.region"},
      {[](auto& f) { f.a.rows = kMax32; }, "a.region"},
      {[](auto& f) { f.a.ld = kMax32; }, "a.region"},
      {[](auto& f) { f.a.dtype = v1::FP32; }, "a.dtype FP32"},
      // Overlaps: from both sides, and in the gaps between rows.
      {[](auto& f) { f.output.region.offset = 44; }, "overlap those of a"},
      {[](auto& f) { f.output.region.offset = 120; }, "overlap those of b"},
      {[](auto& f) { f.output.region.offset = 0; }, "overlap those of a"},
      {[](auto& f) { f.a.region.offset = 206; }, "overlap those of a"},
      {[](auto& f) { f.a.ld = 200; }, "overlap those of a"},
  };
  for (const Lie& lie : lies) {
    const absl::Status status = Refused(lie.change);
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsUnimplemented(status)) << status;
    EXPECT_NE(status.message().find(lie.words), std::string::npos) << lie.words << ": " << status;
  }
  const auto touching = [](auto& f) {
    f.output.region.offset = 124;
    f.a.region.offset = 204;
  };
  EXPECT_TRUE(Refused(touching).ok()) << "B ends where D begins, D where A does";
}

TEST_F(RegionOperandsTest, AHugeResultOfFewBytesIsRefused) {
  // K = 1: 2^62 elements of 4 bytes.
  const absl::Status status = Refused([](RequestFields& f) {
    f.a.rows = f.b.cols = kMax32;
    f.a.cols = f.b.rows = 1;
    for (OperandFields* operand : {&f.a, &f.b}) {
      operand->source = Source::kInline;
      operand->inline_bytes = static_cast<size_t>(kMax32) * 2;
    }
  });
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
}

TEST_F(RegionOperandsTest, OtherRegionsDoNotOverlap) {
  const SharedRegionRef other = Open(ann_);
  EXPECT_TRUE(Refused([&](RequestFields& f) {
                f.output.region.name = other->identity().name;
                f.output.region.offset = 0;
              }).ok());
}

TEST_F(RegionOperandsTest, NobodyElsesAndNoneThatIsClosed) {
  const SharedRegionRef bobs = Open({"uid:2"});
  for (const std::string& none : {bobs->identity().name, std::string(), std::string(32, '0')}) {
    for (int which = 0; which < 3; ++which) {
      const absl::Status status = Refused([&](RequestFields& f) {
        (which == 0 ? f.a.region : which == 1 ? f.b.region : f.output.region).name = none;
      });
      EXPECT_TRUE(absl::IsNotFound(status)) << status;
      const char* const fields[] = {"a.region", "b.region", "output.region"};
      EXPECT_EQ(status.message().rfind(fields[which], 0), 0u) << status;
    }
  }
  store_.Close(region_);
  EXPECT_TRUE(absl::IsNotFound(Validate(fields_).status()));
}

TEST_F(RegionOperandsTest, ARequestHoldsItsRegionsUntilRelease) {
  RegionOperands regions(&store_, ann_);
  RequestFields fields = fields_;
  ASSERT_TRUE(regions.Find(fields).ok());
  EXPECT_EQ(regions.regions().a, region_);
  EXPECT_EQ(regions.regions().b, region_);
  EXPECT_EQ(regions.regions().d, region_);
  store_.Close(region_);
  region_ = nullptr;
  EXPECT_EQ(store_.used_bytes(), kPage);
  regions.Release();
  while (store_.used_bytes() != 0) std::this_thread::yield();
}

TEST(RegionOperandsOffTest, WithoutSharedMemoryItIsUnimplemented) {
  SharedRegionStore store({}, nullptr);
  RegionOperands regions(&store, {"uid:1"});
  RequestFields fields;
  fields.a.source = Source::kRegion;
  const absl::Status status = regions.Find(fields);
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_NE(status.message().find("--allow-shared-memory"), std::string::npos);
}

}  // namespace
}  // namespace tcgemm
