#include "kernels/cuda_launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/gpu_plan.h"

namespace tcgemm {
namespace {

using ::testing::HasSubstr;

const void* Address(uintptr_t value) { return reinterpret_cast<const void*>(value); }
void* MutableAddress(uintptr_t value) { return reinterpret_cast<void*>(value); }

PlanLimits Hopper() {
  return {.kernels = {KernelId::kTmaMma, KernelId::kCpAsyncMma},
          .max_problems = kMaxLaunchProblems,
          .compute_capability = 90,
          .multiprocessors = 132,
          .shared_bytes_per_block = 232448,
          .shared_bytes_per_multiprocessor = 233472};
}

GemmProblem Problem(GemmShape shape, uintptr_t base = 0x100000) {
  const auto padded = [](int64_t columns) {
    return std::max<int64_t>(1, (columns + 63) / 64) * 64;
  };
  GemmProblem problem;
  problem.a = {Address(base), shape.m, shape.k, padded(shape.k), DType::kBf16, false};
  problem.b = {Address(base + 0x40000), shape.n, shape.k, padded(shape.k), DType::kBf16, true};
  problem.d = {
      MutableAddress(base + 0x80000), shape.m, shape.n, padded(shape.n), DType::kBf16, false};
  return problem;
}

void ExpectRefused(const Plan& plan, const std::vector<GemmProblem>& problems, const char* what,
                   const PlanLimits& limits = Hopper()) {
  const absl::Status status = CheckLaunch(limits, plan, problems);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status << " instead of " << what;
  EXPECT_THAT(std::string(status.message()), HasSubstr(what));
}

TEST(CudaLaunchTest, TakesWhatChoosePlanChooses) {
  for (KernelId kernel :
       {KernelId::kTmaWgmma, KernelId::kTmaMma, KernelId::kCpAsyncMma, KernelId::kSimt}) {
    PlanLimits limits = Hopper();
    limits.kernels = {kernel};
    for (const int count : {1, 2, MaxProblems(kernel)}) {
      const std::vector<GemmProblem> problems(count, Problem({.m = 300, .n = 130, .k = 70}));
      const Plan plan = *ChoosePlan(limits, problems);
      EXPECT_TRUE(CheckLaunch(Hopper(), plan, problems).ok()) << plan.ToString();
    }
  }
}

TEST(CudaLaunchTest, RefusesAPlanOfAnotherDeviceOrBatch) {
  const std::vector<GemmProblem> one = {Problem({.m = 64, .n = 64, .k = 64})};
  const std::vector<GemmProblem> two(2, one[0]);
  const Plan plan = *ChoosePlan(Hopper(), one);
  Plan wrong = plan;
  wrong.kernel = KernelId::kCpuPlain;
  ExpectRefused(wrong, one, "not a kernel of this device");
  ExpectRefused(plan, two, "not one of 2 problems");
  ExpectRefused(plan, {}, "0 problems; a launch takes 1 to 96");
  ExpectRefused(plan, std::vector<GemmProblem>(97, one[0]), "97 problems");
  wrong = plan;
  wrong.tiles += 1;
  ExpectRefused(wrong, one, "its problems have");
  PlanLimits ampere = Hopper();
  ampere.compute_capability = 80;
  ExpectRefused(plan, one, "needs compute capability 90, the GPU has 80", ampere);
}

TEST(CudaLaunchTest, RefusesTilesThatCannotRun) {
  const std::vector<GemmProblem> one = {Problem({.m = 64, .n = 64, .k = 64})};
  const Plan plan = *ChoosePlan(Hopper(), one);
  Plan wrong = plan;
  wrong.tile.stages += 1;
  ExpectRefused(wrong, one, "no kernel for compute capability 90 was compiled for its tile");
  wrong.tile = kGpuTiles.back().tile;  // of sm_120
  ExpectRefused(wrong, one, "no kernel for compute capability 90");
  wrong = plan;
  wrong.kernel = KernelId::kSimt;
  ExpectRefused(wrong, one, "simt has one tile");
  PlanLimits small = Hopper();
  small.shared_bytes_per_block = 1000;
  ExpectRefused(plan, one, "bytes of shared memory a block, the GPU has 1000", small);
  for (const GpuTileEntry& entry : kGpuTiles) {
    if (entry.grouped || entry.compute_capability != 90) continue;
    wrong = {.kernel = KernelId::kTmaMma, .problems = 2, .tile = entry.tile, .tiles = 2};
    ExpectRefused(wrong, {one[0], one[0]}, "its tile takes one problem at a time");
  }
}

TEST(CudaLaunchTest, RefusesProblemsThatAKernelWouldMisread) {
  const GemmProblem good = Problem({.m = 64, .n = 64, .k = 64});
  const Plan plan = *ChoosePlan(Hopper(), {&good, 1});
  GemmProblem bad = good;
  bad.a.ld = 68;
  ExpectRefused(plan, {bad}, "problem 0: a.ld is 68; Tensor Core kernels take multiples of 8");
  bad = good;
  bad.b.data = Address(0x100008);
  ExpectRefused(plan, {bad}, "b.data is not aligned to 16 bytes");
  bad = good;
  bad.d.ld = 65;
  ExpectRefused(plan, {bad}, "d.ld is 65; Tensor Core kernels take multiples of 2");
  bad = good;
  bad.d.data = MutableAddress(0x100004);
  ExpectRefused(plan, {bad}, "d.data is not aligned to 8 bytes");
  bad = good;
  bad.a.data = nullptr;
  ExpectRefused(plan, {bad}, "problem 0: ");
  bad = good;
  bad.a.ld = int64_t{1} << 20;
  bad.a.cols = (int64_t{1} << 31);
  ExpectRefused(plan, {bad}, "problem 0: ");

  const Plan two = {
      .kernel = KernelId::kTmaMma, .problems = 2, .tile = kGpuTiles[0].tile, .tiles = 2};
  bad = good;
  bad.d.dtype = DType::kFp32;
  ExpectRefused(two, {good, bad}, "problem 1 has another output type");
  // simt reads anything.
  GemmProblem odd = good;
  odd.a.ld = 65;
  odd.a.data = Address(0x100002);
  PlanLimits simt = Hopper();
  simt.kernels = {KernelId::kSimt};
  EXPECT_TRUE(CheckLaunch(Hopper(), *ChoosePlan(simt, {&odd, 1}), {&odd, 1}).ok());
}

TensorMapEncoder AddressEncoder() {
  return [](const TensorMapKey& key) -> absl::StatusOr<TensorMap> {
    TensorMap map = {};
    std::memcpy(&map, &key.address, sizeof(key.address));
    return map;
  };
}

uint64_t AddressIn(const TensorMap& map) {
  uint64_t address = 0;
  std::memcpy(&address, &map, sizeof(address));
  return address;
}

TEST(CudaLaunchTest, ArgumentsSayWhatTheProblemsSay) {
  uint32_t nonfinite = 0;
  std::vector<GemmProblem> problems = {Problem({.m = 130, .n = 70, .k = 96}),
                                       Problem({.m = 1, .n = 1, .k = 1}, 0x900000)};
  problems[0].nonfinite = &nonfinite;
  const Plan plan = {.kernel = KernelId::kTmaMma,
                     .problems = 2,
                     .tile = kGpuTiles[0].tile,  // 64x64
                     .tiles = 7};
  ASSERT_TRUE(CheckLaunch(Hopper(), plan, problems).ok()) << CheckLaunch(Hopper(), plan, problems);
  LaunchBuilder builder(AddressEncoder());
  const absl::StatusOr<LaunchArguments> arguments = builder.Build(Hopper(), plan, problems);
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_EQ(arguments->problem_count, 2);
  EXPECT_EQ(arguments->tile_count, 7);
  EXPECT_FALSE(arguments->output_fp32);
  EXPECT_EQ(arguments->tile, plan.tile);
  const LaunchProblem& first = arguments->problems[0];
  EXPECT_EQ(first.a, problems[0].a.data);
  EXPECT_EQ(first.b, problems[0].b.data);
  EXPECT_EQ(first.d, problems[0].d.data);
  EXPECT_EQ(first.nonfinite, &nonfinite);
  EXPECT_EQ(first.lda, 128);
  EXPECT_EQ(first.ldb, 128);
  EXPECT_EQ(first.ldd, 128);
  EXPECT_EQ(first.m, 130);
  EXPECT_EQ(first.n, 70);
  EXPECT_EQ(first.k, 96);
  EXPECT_EQ(first.first_tile, 0);
  EXPECT_FALSE(first.a_transposed);
  EXPECT_TRUE(first.b_transposed);
  EXPECT_EQ(arguments->problems[1].first_tile, 6);
  EXPECT_EQ(arguments->problems[1].nonfinite, nullptr);
  EXPECT_EQ(AddressIn(arguments->maps[0].a), 0x100000u);
  EXPECT_EQ(AddressIn(arguments->maps[0].b), 0x140000u);
  EXPECT_EQ(AddressIn(arguments->maps[1].a), 0x900000u);
  EXPECT_EQ(AddressIn(arguments->maps[1].b), 0x940000u);
}

TEST(CudaLaunchTest, ArgumentsSayWhatTheEpilogueSays) {
  GemmProblem problem = Problem({.m = 5, .n = 70, .k = 96});
  problem.d.dtype = DType::kFp32;
  problem.epilogue = {.alpha = 2, .beta = 3, .activation = Activation::kSilu};
  problem.epilogue.c = {Address(0x200000), 5, 70, 72, DType::kFp32, false};
  const MatrixView row = {Address(0x300002), 1, 70, 70, DType::kBf16, false};
  const MatrixView column = {Address(0x300004), 5, 1, 64, DType::kFp32, false};
  // Tiles as they are and swapped: D, C and the bias are the same, the operands change places.
  for (const bool swapped : {false, true}) {
    const GpuTileEntry& entry =
        *std::find_if(kWgmmaTiles.begin(), kWgmmaTiles.end(), [swapped](const GpuTileEntry& e) {
          return e.tile.swapped == swapped && e.tile.cluster == 1 && e.tile.n <= 128;
        });
    const Plan plan = {
        .kernel = KernelId::kTmaWgmma, .problems = 1, .tile = entry.tile, .tiles = swapped ? 2 : 1};
    for (const MatrixView& bias : {row, column}) {
      problem.epilogue.bias = bias;
      ASSERT_TRUE(CheckLaunch(Hopper(), plan, {&problem, 1}).ok())
          << CheckLaunch(Hopper(), plan, {&problem, 1});
      LaunchBuilder builder(AddressEncoder());
      const auto arguments = builder.Build(Hopper(), plan, {&problem, 1});
      ASSERT_TRUE(arguments.ok()) << arguments.status();
      const LaunchProblem& filled = arguments->problems[0];
      EXPECT_TRUE(filled.has_epilogue);
      EXPECT_EQ(filled.m, swapped ? 70 : 5);
      EXPECT_EQ(filled.n, swapped ? 5 : 70);
      EXPECT_EQ(filled.k, 96);
      EXPECT_EQ(filled.alpha, 2);
      EXPECT_EQ(filled.beta, 3);
      EXPECT_EQ(filled.activation, Activation::kSilu);
      EXPECT_EQ(filled.c, Address(0x200000));
      EXPECT_EQ(filled.ldc, 72u);
      EXPECT_TRUE(filled.c_fp32);
      EXPECT_EQ(filled.bias, bias.data);
      const bool is_column = bias.cols == 1;
      EXPECT_EQ(filled.bias_fp32, is_column);
      EXPECT_EQ(filled.bias_row_stride, is_column ? 64u : 0u);
      EXPECT_EQ(filled.bias_column_stride, is_column ? 0u : 1u);
    }
  }
}

TEST(CudaLaunchTest, WhatDoesNotCountIsNotPassed) {
  GemmProblem problem = Problem({.m = 64, .n = 64, .k = 64});
  LaunchBuilder builder(AddressEncoder());
  const Plan plan = *ChoosePlan(Hopper(), {&problem, 1});
  auto arguments = builder.Build(Hopper(), plan, {&problem, 1});
  EXPECT_FALSE(arguments->problems[0].has_epilogue);
  problem.epilogue.c = {Address(3), 1, 1, 1, DType::kInt8, true};  // beta is 0
  problem.epilogue.alpha = 0;
  ASSERT_TRUE(CheckLaunch(Hopper(), plan, {&problem, 1}).ok());
  const int64_t misses = builder.counts().misses;
  arguments = builder.Build(Hopper(), plan, {&problem, 1});
  EXPECT_TRUE(arguments->problems[0].has_epilogue);
  EXPECT_EQ(arguments->problems[0].c, nullptr);
  EXPECT_EQ(arguments->problems[0].k, 0) << "alpha is 0: nothing is summed";
  EXPECT_EQ(builder.counts().misses, misses) << "and no operand has a map";
}

TEST(CudaLaunchTest, RefusesAddendsThatAKernelWouldMisread) {
  const GemmProblem good = Problem({.m = 64, .n = 63, .k = 64});
  const Plan plan = *ChoosePlan(Hopper(), {&good, 1});
  GemmProblem bad = good;
  bad.epilogue.beta = 1;
  bad.epilogue.c = {Address(0x200000), 64, 63, 63, DType::kBf16, false};
  ExpectRefused(plan, {bad}, "c.ld is 63; Tensor Core kernels take multiples of 2");
  bad.epilogue.c.ld = 64;
  bad.epilogue.c.data = Address(0x200004);
  ExpectRefused(plan, {bad}, "c.data is not aligned to 8 bytes");
  bad.epilogue.c.rows = 63;
  ExpectRefused(plan, {bad}, "problem 0: c is 63x63, D is 64x63");
  bad = good;
  bad.epilogue.bias = {Address(0x200000), 64, 1, int64_t{1} << 32, DType::kBf16, false};
  ExpectRefused(plan, {bad}, "bias.ld is 4294967296; the limit on a GPU is 4294967295");
  bad = good;
  bad.d.ld = int64_t{1} << 32;
  ExpectRefused(plan, {bad}, "d.ld is 4294967296");
  // simt reads anything; a bias may lie anywhere.
  GemmProblem odd = good;
  odd.epilogue.beta = 1;
  odd.epilogue.c = {Address(0x200002), 64, 63, 63, DType::kBf16, false};
  odd.epilogue.bias = {Address(0x300002), 1, 63, 63, DType::kBf16, false};
  PlanLimits simt = Hopper();
  simt.kernels = {KernelId::kSimt};
  EXPECT_TRUE(CheckLaunch(Hopper(), *ChoosePlan(simt, {&odd, 1}), {&odd, 1}).ok());
}

TEST(CudaLaunchTest, MapsAreForTmaAloneAndForWhatIsNotEmpty) {
  LaunchBuilder builder(
      [](const TensorMapKey&) -> absl::StatusOr<TensorMap> { return TensorMap{}; });
  GemmProblem problem = Problem({.m = 64, .n = 64, .k = 0});
  problem.d.dtype = DType::kFp32;
  Plan plan = {.kernel = KernelId::kTmaMma, .problems = 1, .tile = kGpuTiles[0].tile, .tiles = 1};
  ASSERT_TRUE(CheckLaunch(Hopper(), plan, {&problem, 1}).ok());
  absl::StatusOr<LaunchArguments> arguments = builder.Build(Hopper(), plan, {&problem, 1});
  ASSERT_TRUE(arguments.ok()) << arguments.status();
  EXPECT_TRUE(arguments->output_fp32);
  EXPECT_EQ(builder.counts().misses, 0);

  problem = Problem({.m = 64, .n = 64, .k = 64});
  plan.kernel = KernelId::kCpAsyncMma;
  arguments = builder.Build(Hopper(), plan, {&problem, 1});
  EXPECT_EQ(arguments->maps, nullptr);
  EXPECT_EQ(builder.counts().misses, 0);

  plan.kernel = KernelId::kTmaMma;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(builder.Build(Hopper(), plan, {&problem, 1}).ok());
  EXPECT_EQ(builder.counts().misses, 2);
  EXPECT_EQ(builder.counts().hits, 4);
}

TEST(CudaLaunchTest, AnEncodersErrorEndsTheLaunch) {
  const absl::Status error = absl::InternalError("CUDA_ERROR_INVALID_VALUE");
  LaunchBuilder builder([&](const TensorMapKey&) -> absl::StatusOr<TensorMap> { return error; });
  const GemmProblem problem = Problem({.m = 64, .n = 64, .k = 64});
  EXPECT_EQ(builder.Build(Hopper(), *ChoosePlan(Hopper(), {&problem, 1}), {&problem, 1}).status(),
            error);
}

}  // namespace
}  // namespace tcgemm
