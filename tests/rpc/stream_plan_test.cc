#include "server/rpc/stream_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {
namespace {

using absl::StatusCode;
using testing::HasSubstr;
using Source = OperandFields::Source;

constexpr StreamLimits kLimits = {.pitch_alignment = 64,
                                  .lease_bytes = size_t{512} << 20,
                                  .slab_bytes = std::numeric_limits<size_t>::max()};

OperandFields Streamed(int64_t rows, int64_t cols, bool transposed = false) {
  OperandFields operand;
  operand.present = true;
  operand.rows = rows;
  operand.cols = cols;
  operand.dtype = v1::BF16;
  operand.transposed = transposed;
  return operand;
}

OperandFields Resident(int64_t rows, int64_t cols, bool transposed = false) {
  static uint16_t element;
  OperandFields operand = Streamed(rows, cols, transposed);
  operand.source = Source::kHandle;
  operand.resident = {&element, rows, cols, (cols + 63) / 64 * 64, DType::kBf16, false};
  return operand;
}

// M, N and K, nothing transposed.
RequestFields Product(int64_t m, int64_t n, int64_t k) {
  RequestFields fields;
  fields.a = Streamed(m, k);
  fields.b = Streamed(k, n);
  return fields;
}

void KeepResult(RequestFields& fields) {
  fields.output.present = true;
  fields.output.target = OutputFields::Target::kHandle;
}

// Every row of D is in one panel, in order; and no lease is larger than what was reserved.
void CheckCut(const StreamPlan& plan, const StreamLimits& limits) {
  int64_t next = 0;
  for (int64_t i = 0; i < plan.panels; ++i) {
    const PanelLayout panel = LayoutOfPanel(plan, i);
    ASSERT_EQ(panel.first_row, next);
    ASSERT_GE(panel.rows, 1);
    ASSERT_LE(panel.lease_bytes, plan.panel_lease_bytes);
    ASSERT_EQ(panel.d_offset % 256, 0u);
    next += panel.rows;
  }
  EXPECT_EQ(next, plan.layout.d.rows);
  EXPECT_GE(plan.at_once, 1);
  EXPECT_LE(plan.at_once, StreamPlan::kPanelsAtOnce);
  EXPECT_LE(plan.reserved_bytes(), limits.lease_bytes);
}

StreamPlan Plan(const RequestFields& fields, const StreamLimits& limits = kLimits) {
  absl::StatusOr<StreamPlan> plan = PlanStream(fields, limits);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  CheckCut(*plan, limits);
  return *plan;
}

TEST(StreamPlanTest, APanelHasSomeMiBAndWholeTiles) {
  const StreamPlan plan = Plan(Product(4096, 4096, 4096));
  EXPECT_TRUE(plan.a_is_streamed);
  EXPECT_TRUE(plan.b_is_streamed);
  EXPECT_TRUE(plan.a_in_panels);
  EXPECT_EQ(plan.panel_rows % 64, 0);
  EXPECT_GT(plan.panel_lease_bytes, StreamPlan::kPanelBytes / 2);
  EXPECT_LE(plan.panel_lease_bytes, StreamPlan::kPanelBytes);
  EXPECT_EQ(plan.at_once, StreamPlan::kPanelsAtOnce);
}

TEST(StreamPlanTest, LongRowsStillFillATile) {
  const StreamPlan plan = Plan(Product(1000, 64, 65536));
  EXPECT_EQ(plan.panel_rows, StreamPlan::kPanelRows);
  EXPECT_LE(plan.panel_lease_bytes, StreamPlan::kMaxPanelBytes);
  // Rows so long that even this is too much.
  EXPECT_EQ(Plan(Product(1000, 64, 10'000'000)).panel_rows, 1);
}

TEST(StreamPlanTest, ASmallProductIsOnePanel) {
  for (const int64_t m : {1, 2, 63, 64, 65, 700}) {
    const StreamPlan plan = Plan(Product(m, 33, 65));
    EXPECT_EQ(plan.panels, 1);
    EXPECT_EQ(plan.panel_rows, m);
    EXPECT_EQ(plan.at_once, 1) << "no more is reserved than there is";
  }
}

TEST(StreamPlanTest, ATransposedAIsResidentAndCutWhereTmaMayStart) {
  for (const int64_t n : {1, 64, 4096, 100'000, 1'000'000}) {
    RequestFields fields = Product(5000, n, 100);
    fields.a = Streamed(100, 5000, /*transposed=*/true);
    fields.output_dtype = v1::FP32;
    const StreamPlan plan = Plan(fields);
    EXPECT_FALSE(plan.a_in_panels);
    for (int64_t i = 0; i < plan.panels; ++i) EXPECT_EQ(LayoutOfPanel(plan, i).first_row % 8, 0);
  }
}

TEST(StreamPlanTest, WhatIsResidentTakesNoLease) {
  RequestFields fields = Product(100'000, 4096, 4096);
  fields.a = Resident(100'000, 4096);
  fields.b = Resident(4096, 4096);
  const StreamPlan d_travels = Plan(fields);
  EXPECT_FALSE(d_travels.a_is_streamed || d_travels.b_is_streamed);
  EXPECT_EQ(LayoutOfPanel(d_travels, 0).d_offset, 0u);
  EXPECT_EQ(d_travels.panel_lease_bytes, static_cast<size_t>(d_travels.panel_rows) * 8192);
  KeepResult(fields);
  const StreamPlan nothing_travels = Plan(fields);
  EXPECT_EQ(nothing_travels.panels, 1);
  EXPECT_EQ(nothing_travels.panel_lease_bytes, 0u);
}

TEST(StreamPlanTest, OperandsAndResultsBeyond2GiB) {
  // A of 2.3 GB in 64-bit offsets; D of 8 TB.
  const StreamPlan tall = Plan(Product(1'100'000'000, 1, 1));
  EXPECT_GT(LayoutOfPanel(tall, tall.panels - 1).first_row, int64_t{1} << 30);
  const StreamPlan square = Plan(Product(2'000'000, 2'000'000, 1));
  EXPECT_GE(square.panels, 100'000);
  const PanelLayout last = LayoutOfPanel(square, square.panels - 1);
  EXPECT_EQ(last.first_row + last.rows, 2'000'000);
}

TEST(StreamPlanTest, PanelsShrinkToWhatThereIs) {
  StreamLimits small = kLimits;
  small.lease_bytes = 1 << 20;
  const StreamPlan plan = Plan(Product(5000, 500, 1000), small);
  EXPECT_EQ(plan.at_once, StreamPlan::kPanelsAtOnce);
  // One row is half of it: one panel of one row at a time.
  const StreamPlan rows = Plan(Product(10, 10, 300'000), small);
  EXPECT_EQ(rows.panel_rows, 1);
  EXPECT_EQ(rows.at_once, 1);
  StreamLimits slab = kLimits;
  slab.slab_bytes = 100'000;
  EXPECT_LE(Plan(Product(5000, 500, 1000), slab).panel_lease_bytes, 100'000u);
}

TEST(StreamPlanTest, ARowThatDoesNotFitIsRefusedInWords) {
  StreamLimits small = kLimits;
  small.lease_bytes = 1 << 20;
  const auto host = PlanStream(Product(10, 10, 600'000), small);
  EXPECT_EQ(host.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(host.status().message()), HasSubstr("half of --pinned-bytes"));
  StreamLimits slab = kLimits;
  slab.slab_bytes = 100'000;
  const auto device = PlanStream(Product(10, 10, 600'000), slab);
  EXPECT_EQ(device.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("--device-bytes"));
  // Eight rows of D where one would fit: a transposed A is not cut finer.
  RequestFields wide = Product(100, 100'000, 10);
  wide.a = Streamed(10, 100, /*transposed=*/true);
  EXPECT_EQ(PlanStream(wide, small).status().code(), StatusCode::kResourceExhausted);
}

TEST(StreamPlanTest, SaysWhatIsWrongWithAHeader) {
  struct Bad {
    std::function<void(RequestFields&)> change;
    StatusCode code;
    const char* words;
  };
  for (const Bad& bad : std::vector<Bad>{
           {[](auto& f) { f.a.source = Source::kInline; }, StatusCode::kInvalidArgument,
            "a.inline is set"},
           {[](auto& f) { f.b.source = Source::kRegion; }, StatusCode::kUnimplemented, "b.region"},
           {[](auto& f) { f.output.target = OutputFields::Target::kRegion; },
            StatusCode::kUnimplemented, "output.region"},
           {[](auto& f) { f.c.present = true; }, StatusCode::kInvalidArgument, "c has no handle"},
           {[](auto& f) { f.bias.present = true, f.bias.source = Source::kInline; },
            StatusCode::kInvalidArgument, "bias has no handle"},
           {[](auto& f) { f.c.present = true, f.c.source = Source::kRegion; },
            StatusCode::kUnimplemented, "c.region"},
           {[](auto& f) { f.epilogue.beta = 1; }, StatusCode::kInvalidArgument, "c is missing"},
           {[](auto& f) { f.bias = Resident(2, 2); }, StatusCode::kInvalidArgument, "bias is 2x2"},
           {[](auto& f) { f.epilogue.activation = 44; }, StatusCode::kInvalidArgument,
            "activation is 44"},
           {[](auto& f) { f.b.ld = 6; }, StatusCode::kInvalidArgument, "b.ld is 6"},
           {[](auto& f) { f.a.rows = 0; }, StatusCode::kInvalidArgument, "a.rows is 0"},
           {[](auto& f) { f.a.cols = 5; }, StatusCode::kInvalidArgument, "inner dimensions differ"},
           {[](auto& f) { f.b.present = false; }, StatusCode::kInvalidArgument, "b is missing"},
           {[](auto& f) { f.a.dtype = v1::FP32; }, StatusCode::kUnimplemented, "a.dtype FP32"},
           {[](auto& f) { f.output_dtype = 77; }, StatusCode::kInvalidArgument, "output_dtype"},
           {[](auto& f) { f.output.present = true; }, StatusCode::kInvalidArgument, "output"}}) {
    RequestFields fields = Product(4, 5, 6);
    bad.change(fields);
    const auto plan = PlanStream(fields, kLimits);
    EXPECT_EQ(plan.status().code(), bad.code) << bad.words;
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr(bad.words));
  }
  RequestFields dense = Product(4, 5, 6);
  dense.a.ld = 6;
  EXPECT_TRUE(PlanStream(dense, kLimits).ok()) << "ld = cols says nothing new";
}

TEST(StreamPlanTest, EachPanelHasItsRowsOfTheEpilogue) {
  RequestFields fields = Product(5000, 100, 200);
  fields.c = Resident(5000, 100);
  fields.bias = Resident(5000, 1);
  fields.epilogue = {.alpha = 2.0f, .beta = 3.0f, .activation = v1::RELU};
  const StreamPlan plan = Plan(fields);
  std::vector<std::byte> lease(plan.panel_lease_bytes);
  const PanelLayout second = LayoutOfPanel(plan, 1);
  const Epilogue epilogue = ProblemOfPanel(plan, second, lease.data()).epilogue;
  EXPECT_EQ(epilogue.alpha, 2);
  EXPECT_EQ(epilogue.beta, 3);
  EXPECT_EQ(epilogue.activation, Activation::kRelu);
  EXPECT_EQ(epilogue.c.rows, second.rows);
  EXPECT_EQ(static_cast<const std::byte*>(epilogue.c.data) -
                static_cast<const std::byte*>(fields.c.resident.data),
            second.first_row * fields.c.resident.ld * 2);
  EXPECT_EQ(epilogue.bias.rows, second.rows);
}

TEST(StreamPlanTest, ProblemsPointWhereTheirRowsAre) {
  StreamPlan plan = Plan(Product(5000, 100, 200));
  std::vector<std::byte> lease(plan.panel_lease_bytes);
  const MatrixView b = {lease.data() + 1, 200, 100, 128, DType::kBf16, false};
  plan.PlaceB(b);
  const PanelLayout second = LayoutOfPanel(plan, 1);
  const GemmProblem streamed = ProblemOfPanel(plan, second, lease.data());
  EXPECT_EQ(streamed.a.data, lease.data());
  EXPECT_EQ(streamed.a.rows, second.rows);
  EXPECT_EQ(streamed.a.ld, 256) << "rows padded to 64 elements";
  EXPECT_EQ(streamed.b.data, b.data);
  EXPECT_EQ(streamed.b.ld, 128);
  EXPECT_EQ(streamed.d.data, lease.data() + second.d_offset);
  EXPECT_EQ(streamed.d.rows, second.rows);

  RequestFields fields = Product(5000, 100, 200);
  fields.a = Streamed(200, 5000, /*transposed=*/true);
  KeepResult(fields);
  StreamLimits small = kLimits;
  small.lease_bytes = 1 << 20;
  plan = Plan(fields, small);
  std::vector<uint16_t> at(16);
  plan.PlaceA({at.data(), 200, 5000, 5056, DType::kBf16, false});
  EXPECT_TRUE(plan.layout.a.transposed);
  plan.layout.d.data = at.data();
  plan.layout.d.ld = 128;
  plan.panel_rows = 64;
  const GemmProblem columns = ProblemOfPanel(plan, LayoutOfPanel(plan, 3), nullptr);
  EXPECT_EQ(columns.a.data, at.data() + 3 * 64);
  EXPECT_EQ(columns.a.cols, 64);
  EXPECT_EQ(columns.a.rows, 200);
  EXPECT_EQ(columns.d.data, at.data() + 3 * 64 * 128);
}

}  // namespace
}  // namespace tcgemm
