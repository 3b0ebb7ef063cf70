#include "bench/kernel/batch.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/kernel/cublas_batch.h"
#include "bench/kernel/device_data.h"
#include "bench/kernel/operand_sets.h"

namespace tcgemm::bench {
namespace {

constexpr int kBatchesOfABurst = 8;
constexpr int kWarmUpRounds = 2;
constexpr Nanos kLimit = std::chrono::seconds(30);

size_t RoundUp(size_t value) { return (value + 255) / 256 * 256; }

size_t BytesOf(const GemmShape& shape) {
  return RoundUp(2 * shape.m * shape.k) + RoundUp(2 * shape.n * shape.k) +
         RoundUp(2 * shape.m * shape.n);
}

GemmProblem PlaceAt(const GemmShape& shape, std::byte*& at) {
  GemmProblem problem;
  problem.a = {std::exchange(at, at + RoundUp(2 * shape.m * shape.k)),
               shape.m,
               shape.k,
               shape.k,
               DType::kBf16,
               false};
  problem.b = {std::exchange(at, at + RoundUp(2 * shape.n * shape.k)),
               shape.n,
               shape.k,
               shape.k,
               DType::kBf16,
               true};
  problem.d = {std::exchange(at, at + RoundUp(2 * shape.m * shape.n)),
               shape.m,
               shape.n,
               shape.n,
               DType::kBf16,
               false};
  return problem;
}

// Ours, as one launch and as one for each product.
class OurBatch {
 public:
  static absl::StatusOr<OurBatch> Create(Device& device, const BatchSets& sets) {
    OurBatch ours(device, sets);
    TCGEMM_ASSIGN_OR_RETURN(ours.together_, ChoosePlan(device.plan_limits(), sets.batch(0)));
    for (const GemmProblem& problem : sets.batch(0)) {
      TCGEMM_ASSIGN_OR_RETURN(const Plan plan, ChoosePlan(device.plan_limits(), {&problem, 1}));
      ours.alone_.push_back(plan);
    }
    TCGEMM_ASSIGN_OR_RETURN(ours.stream_, device.CreateStream());
    TCGEMM_ASSIGN_OR_RETURN(ours.from_, device.CreateEvent());
    TCGEMM_ASSIGN_OR_RETURN(ours.to_, device.CreateEvent());
    return ours;
  }

  const Plan& together() const { return together_; }

  absl::StatusOr<double> OneLaunch(int first_set, int batches) {
    return Time(first_set, batches, [this](const std::vector<GemmProblem>& batch) {
      return device_.Launch(*stream_, together_, batch);
    });
  }
  absl::StatusOr<double> OneByOne(int first_set, int batches) {
    return Time(first_set, batches, [this](const std::vector<GemmProblem>& batch) {
      for (size_t i = 0; i < batch.size(); ++i) {
        TCGEMM_RETURN_IF_ERROR(device_.Launch(*stream_, alone_[i], {&batch[i], 1}));
      }
      return absl::OkStatus();
    });
  }

 private:
  OurBatch(Device& device, const BatchSets& sets) : device_(device), sets_(sets) {}

  template <typename LAUNCH>
  absl::StatusOr<double> Time(int first_set, int batches, const LAUNCH& launch) {
    TCGEMM_RETURN_IF_ERROR(device_.Record(*stream_, *from_));
    for (int i = 0; i < batches; ++i) TCGEMM_RETURN_IF_ERROR(launch(sets_.batch(first_set + i)));
    TCGEMM_RETURN_IF_ERROR(device_.Record(*stream_, *to_));
    TCGEMM_RETURN_IF_ERROR(device_.Wait(*to_, kLimit));
    TCGEMM_ASSIGN_OR_RETURN(const Nanos elapsed, device_.Elapsed(*from_, *to_));
    return std::chrono::duration<double>(elapsed).count();
  }

  Device& device_;
  const BatchSets& sets_;
  Plan together_;
  std::vector<Plan> alone_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> from_;
  std::unique_ptr<Event> to_;
};

// One of the four ways to compute the batch, and where its seconds go.
struct Way {
  const char* name;
  std::function<absl::StatusOr<double>(int, int)> run;
  double* median;
  std::vector<double> seconds = {};
};

absl::Status CheckWay(const BatchSets& sets, Way& way) {
  TCGEMM_RETURN_IF_ERROR(sets.Poison());
  TCGEMM_RETURN_IF_ERROR(way.run(0, 1).status());
  const absl::Status right = sets.CheckAgainstReference();
  if (right.ok()) return right;
  return absl::Status(right.code(), absl::StrCat(way.name, ": ", std::string(right.message())));
}

}  // namespace

bool BatchCase::uniform() const {
  return std::all_of(shapes.begin(), shapes.end(),
                     [&](const GemmShape& shape) { return shape == shapes[0]; });
}

std::vector<BatchCase> BatchCases() {
  std::vector<BatchCase> cases;
  for (const auto& [count, side] : {std::pair(8, 1024), {16, 512}, {64, 128}, {32, 256}}) {
    cases.push_back({absl::StrCat(count, "x", side, "^3"),
                     std::vector<GemmShape>(count, {.m = side, .n = side, .k = side})});
  }
  BatchCase grouped{.name = "48 with M 1..500", .shapes = {}};
  // 17 and 48 have no common factor: all of 48 steps from 1 to 500, in no order.
  for (int64_t i = 0; i < 48; ++i) {
    grouped.shapes.push_back({.m = 1 + i * 17 % 48 * 499 / 47, .n = 1024, .k = 1024});
  }
  cases.push_back(std::move(grouped));
  for (size_t i = 0, count = cases.size(); i < count; ++i) {
    BatchCase in_turn = cases[i];
    in_turn.sets = 3;
    cases.push_back(std::move(in_turn));
  }
  return cases;
}

absl::StatusOr<BatchSets> BatchSets::Create(Device& device, const BatchCase& batch) {
  size_t set_bytes = 0;
  size_t reference_bytes = 256;
  for (const GemmShape& shape : batch.shapes) {
    set_bytes += BytesOf(shape);
    reference_bytes += RoundUp(4 * shape.m * shape.n);
  }
  const size_t count = batch.sets > 0 ? batch.sets : kRotatedBytes / set_bytes + 2;
  BatchSets sets;
  TCGEMM_ASSIGN_OR_RETURN(sets.memory_, device.AllocateDevice(count * set_bytes + reference_bytes));
  TCGEMM_RETURN_IF_ERROR(CudaStatus(
      FillNormalOnDevice(sets.memory_.data(), static_cast<int64_t>(count * set_bytes / 2), 1),
      "making random operands"));
  std::byte* at = sets.memory_.data();
  for (size_t i = 0; i < count; ++i) {
    sets.sets_.emplace_back();
    for (const GemmShape& shape : batch.shapes) sets.sets_.back().push_back(PlaceAt(shape, at));
  }
  for (const GemmShape& shape : batch.shapes) {
    sets.references_.push_back(reinterpret_cast<float*>(at));
    at += RoundUp(4 * shape.m * shape.n);
  }
  sets.scratch_ = at;
  TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "making random operands"));
  return sets;
}

absl::Status BatchSets::Poison() const {
  for (const GemmProblem& problem : sets_[0]) {
    const MutableMatrixView& d = problem.d;
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaMemset(d.data, 0xff, 2 * d.rows * d.ld), "poisoning D"));
  }
  return CudaStatus(cudaDeviceSynchronize(), "poisoning D");
}

absl::Status BatchSets::CheckAgainstReference() const {
  for (size_t i = 0; i < sets_[0].size(); ++i) {
    const GemmProblem& problem = sets_[0][i];
    TCGEMM_RETURN_IF_ERROR(
        ExpectNear(problem.d, {references_[i], problem.d.ld}, problem.shape().k, scratch_));
  }
  return absl::OkStatus();
}

absl::StatusOr<BatchResult> MeasureBatch(Device& device, const BatchCase& batch, int rounds) {
  TCGEMM_ASSIGN_OR_RETURN(const BatchSets sets, BatchSets::Create(device, batch));
  TCGEMM_ASSIGN_OR_RETURN(OurBatch ours, OurBatch::Create(device, sets));
  TCGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<CublasBatch> cublas, CreateCublasBatch(sets));
  TCGEMM_RETURN_IF_ERROR(cublas->WriteReferences());
  BatchResult result{.batch = batch, .kernel = ours.together().ToString()};
  Way ways[] = {{"one launch", [&](int set, int n) { return ours.OneLaunch(set, n); },
                 &result.one_launch_seconds},
                {"one by one", [&](int set, int n) { return ours.OneByOne(set, n); },
                 &result.one_by_one_seconds},
                {"cuBLAS in a loop", [&](int set, int n) { return cublas->Loop(set, n); },
                 &result.cublas_loop_seconds},
                {"cuBLAS batched", [&](int set, int n) { return cublas->Batched(set, n); },
                 &result.cublas_batched_seconds}};
  for (Way& way : ways) TCGEMM_RETURN_IF_ERROR(CheckWay(sets, way));
  int set = 0;
  for (int round = -kWarmUpRounds; round < rounds; ++round) {
    for (size_t i = 0; i < std::size(ways); ++i) {
      Way& way = ways[round % 2 == 0 ? i : std::size(ways) - 1 - i];
      TCGEMM_ASSIGN_OR_RETURN(const double seconds, way.run(set, kBatchesOfABurst));
      set = (set + kBatchesOfABurst) % sets.count();
      if (round >= 0) way.seconds.push_back(seconds / kBatchesOfABurst);
    }
  }
  for (Way& way : ways) {
    std::sort(way.seconds.begin(), way.seconds.end());
    *way.median = way.seconds[way.seconds.size() / 2];
  }
  return result;
}

}  // namespace tcgemm::bench
