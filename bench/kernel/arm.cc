#include "bench/kernel/arm.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/kernel/device_data.h"

namespace tcgemm::bench {
namespace {

// An H200 keeps 60 MB; twice that many bytes of operands pass between two uses of a set.
constexpr size_t kRotatedBytes = size_t{120} << 20;
constexpr int kMaxSets = 256;
constexpr int64_t kPitch = 64;
constexpr Nanos kLimit = std::chrono::seconds(30);

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

MatrixView ViewOf(int64_t op_rows, int64_t op_cols, bool transposed) {
  MatrixView view;
  view.rows = transposed ? op_cols : op_rows;
  view.cols = transposed ? op_rows : op_cols;
  view.ld = static_cast<int64_t>(RoundUp(view.cols, kPitch));
  view.dtype = DType::kBf16;
  view.transposed = transposed;
  return view;
}

size_t BytesOf(int64_t rows, int64_t ld, DType dtype) {
  return RoundUp(static_cast<size_t>(rows * ld) * DTypeSize(dtype), 256);
}

class OurArm final : public Arm {
 public:
  OurArm(Device& device, Plan plan, std::string name) : device_(device), plan_(plan), name_(name) {}

  absl::Status Init() {
    TCGEMM_ASSIGN_OR_RETURN(stream_, device_.CreateStream());
    TCGEMM_ASSIGN_OR_RETURN(from_, device_.CreateEvent());
    TCGEMM_ASSIGN_OR_RETURN(to_, device_.CreateEvent());
    return absl::OkStatus();
  }
  const std::string& name() const override { return name_; }
  std::string detail() const override { return plan_.ToString(); }

  absl::StatusOr<double> Burst(const OperandSets& sets, int first_set, int launches) override {
    TCGEMM_RETURN_IF_ERROR(device_.Record(*stream_, *from_));
    for (int i = 0; i < launches; ++i) {
      const GemmProblem& problem = sets.problem(first_set + i);
      TCGEMM_RETURN_IF_ERROR(device_.Launch(*stream_, plan_, {&problem, 1}));
    }
    TCGEMM_RETURN_IF_ERROR(device_.Record(*stream_, *to_));
    TCGEMM_RETURN_IF_ERROR(device_.Wait(*to_, kLimit));
    TCGEMM_ASSIGN_OR_RETURN(const Nanos elapsed, device_.Elapsed(*from_, *to_));
    return std::chrono::duration<double>(elapsed).count();
  }

 private:
  Device& device_;
  const Plan plan_;
  const std::string name_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> from_;
  std::unique_ptr<Event> to_;
};

}  // namespace

absl::Status CudaStatus(int error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(what, ": ", cudaGetErrorString(static_cast<cudaError_t>(error))));
}

absl::StatusOr<OperandSets> OperandSets::Create(Device& device, const Cell& cell) {
  const GemmShape& shape = cell.shape;
  const MatrixView a = ViewOf(shape.m, shape.k, cell.a_transposed);
  const MatrixView b = ViewOf(shape.k, shape.n, cell.b_transposed);
  const auto ldd = static_cast<int64_t>(RoundUp(shape.n, kPitch));
  const size_t a_bytes = BytesOf(a.rows, a.ld, DType::kBf16);
  const size_t b_bytes = BytesOf(b.rows, b.ld, DType::kBf16);
  const size_t d_bytes = BytesOf(shape.m, ldd, cell.output);
  const size_t reference_bytes = BytesOf(shape.m, ldd, DType::kFp32);
  const size_t wanted = (kRotatedBytes + a_bytes + b_bytes - 1) / (a_bytes + b_bytes) + 1;
  const size_t count = std::clamp<size_t>(wanted, 2, kMaxSets);
  OperandSets sets;
  TCGEMM_ASSIGN_OR_RETURN(
      sets.memory_,
      device.AllocateDevice(count * (a_bytes + b_bytes + d_bytes) + reference_bytes + 256));
  std::byte* at = sets.memory_.data();
  uint64_t seed = 1;
  for (size_t i = 0; i < count; ++i) {
    GemmProblem problem{.a = a, .b = b};
    problem.a.data = std::exchange(at, at + a_bytes);
    problem.b.data = std::exchange(at, at + b_bytes);
    problem.d = {std::exchange(at, at + d_bytes), shape.m, shape.n, ldd, cell.output, false};
    for (const auto& [data, bytes] :
         {std::pair(problem.a.data, a_bytes), {problem.b.data, b_bytes}}) {
      TCGEMM_RETURN_IF_ERROR(CudaStatus(
          FillNormalOnDevice(const_cast<void*>(data), static_cast<int64_t>(bytes / 2), seed++),
          "making random operands"));
    }
    sets.problems_.push_back(problem);
  }
  sets.reference_ = reinterpret_cast<float*>(at);
  sets.scratch_ = at + reference_bytes;
  TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "making random operands"));
  return sets;
}

absl::Status OperandSets::Poison() const {
  const MutableMatrixView& d = problems_[0].d;
  TCGEMM_RETURN_IF_ERROR(
      CudaStatus(cudaMemset(d.data, 0xff, BytesOf(d.rows, d.ld, d.dtype)), "poisoning D"));
  return CudaStatus(cudaDeviceSynchronize(), "poisoning D");
}

absl::Status OperandSets::CheckAgainstReference() const {
  const GemmProblem& problem = problems_[0];
  const MutableMatrixView& d = problem.d;
  float difference = 0;
  TCGEMM_RETURN_IF_ERROR(
      CudaStatus(LargestDifference({d.data, d.rows, d.cols, d.ld, d.dtype == DType::kFp32},
                                   {reference_, d.rows, d.cols, d.ld, true}, scratch_, difference),
                 "comparing with cuBLASLt"));
  // Normal data: elements are about √k, the largest of 10^8 six times that. bf16 rounds by 2^-9 of
  // it; two fp32 sums in different orders differ by far less than 2^-12 of Σ|a·b| ≈ 0.64·k.
  const auto k = static_cast<double>(problem.shape().k);
  const double rounding = d.dtype == DType::kBf16 ? 8 * std::sqrt(k) * 0x1p-8 : 0;
  const double tolerance = rounding + k * 0x1p-16 + 1e-6;
  if (difference <= tolerance) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("D differs from cuBLASLt's by ", difference, ", more than ", tolerance));
}

absl::StatusOr<std::unique_ptr<Arm>> CreateOurArm(Device& device, KernelId kernel,
                                                  const GpuTile* tile, const OperandSets& sets) {
  PlanLimits limits = device.plan_limits();
  limits.kernels = {kernel};
  const GemmProblem& problem = sets.problem(0);
  Plan plan;
  std::string name(KernelName(kernel));
  if (tile == nullptr) {
    TCGEMM_ASSIGN_OR_RETURN(plan, ChoosePlan(limits, {&problem, 1}));
  } else {
    plan = {.kernel = kernel,
            .problems = 1,
            .tile = *tile,
            .tiles = static_cast<int>(TileCount(problem.shape(), *tile))};
    absl::StrAppend(
        &name, ":", tile->m, "x", tile->n, "x", tile->k, "s", tile->stages,
        tile->blocks() > 1 ? absl::StrCat("c", tile->cluster, "x", tile->cluster_n) : "",
        tile->swapped ? "_swapped" : "", tile->ping_pong ? "_ping_pong" : "");
  }
  auto arm = std::make_unique<OurArm>(device, plan, name);
  TCGEMM_RETURN_IF_ERROR(arm->Init());
  return arm;
}

}  // namespace tcgemm::bench
