#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/kernel/arm.h"

namespace tcgemm::bench {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int kHeuristics = 8;

absl::Status LtStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": ", cublasLtGetStatusString(status)));
}

cudaDataType_t TypeOf(DType dtype) { return dtype == DType::kFp32 ? CUDA_R_32F : CUDA_R_16BF; }

// cuBLASLt's description of one cell. Its matrices are column-major: a row-major matrix is its own
// transpose there, so D = op(A)·op(B) becomes Dᵀ = op(B)ᵀ·op(A)ᵀ: B goes first, and "transposed"
// keeps its meaning.
class Product {
 public:
  Product() = default;
  ~Product() {
    for (cublasLtMatrixLayout_t layout : {first_, second_, result_}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  absl::Status Init(const GemmProblem& problem, DType output) {
    TCGEMM_RETURN_IF_ERROR(LtStatus(
        cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "matmul desc"));
    const std::pair<cublasLtMatmulDescAttributes_t, bool> transposes[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, problem.b.transposed},
        {CUBLASLT_MATMUL_DESC_TRANSB, problem.a.transposed}};
    for (const auto& [attribute, transposed] : transposes) {
      const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
      TCGEMM_RETURN_IF_ERROR(
          LtStatus(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof(value)),
                   "transpose"));
    }
    const MutableMatrixView& d = problem.d;
    TCGEMM_RETURN_IF_ERROR(
        Layout(problem.b.cols, problem.b.rows, problem.b.ld, CUDA_R_16BF, first_));
    TCGEMM_RETURN_IF_ERROR(
        Layout(problem.a.cols, problem.a.rows, problem.a.ld, CUDA_R_16BF, second_));
    return Layout(d.cols, d.rows, d.ld, TypeOf(output), result_);
  }

  absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> Heuristics(
      cublasLtHandle_t handle) const {
    cublasLtMatmulPreference_t preference = nullptr;
    TCGEMM_RETURN_IF_ERROR(LtStatus(cublasLtMatmulPreferenceCreate(&preference), "preference"));
    std::vector<cublasLtMatmulHeuristicResult_t> found(kHeuristics);
    int count = 0;
    absl::Status status = LtStatus(
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &kWorkspaceBytes, sizeof(kWorkspaceBytes)),
        "workspace");
    if (status.ok()) {
      status = LtStatus(
          cublasLtMatmulAlgoGetHeuristic(handle, operation_, first_, second_, result_, result_,
                                         preference, kHeuristics, found.data(), &count),
          "heuristics");
    }
    cublasLtMatmulPreferenceDestroy(preference);
    TCGEMM_RETURN_IF_ERROR(status);
    found.resize(count);
    if (found.empty()) return absl::FailedPreconditionError("cuBLASLt has no algorithm for this");
    return found;
  }

  struct Place {
    cublasLtHandle_t handle;
    cudaStream_t stream;
    void* workspace;
  };
  absl::Status Enqueue(const Place& place, const GemmProblem& problem, void* d,
                       const cublasLtMatmulAlgo_t& algorithm) const {
    const float alpha = 1;
    const float beta = problem.epilogue.beta;
    const void* const c = problem.epilogue.reads_c() ? problem.epilogue.c.data : d;
    return LtStatus(cublasLtMatmul(place.handle, operation_, &alpha, problem.b.data, first_,
                                   problem.a.data, second_, &beta, c, result_, d, result_,
                                   &algorithm, place.workspace, kWorkspaceBytes, place.stream),
                    "cublasLtMatmul");
  }

 private:
  static absl::Status Layout(int64_t rows, int64_t cols, int64_t ld, cudaDataType_t type,
                             cublasLtMatrixLayout_t& layout) {
    return LtStatus(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows),
                                               static_cast<uint64_t>(cols), ld),
                    "matrix layout");
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr;
  cublasLtMatrixLayout_t second_ = nullptr;
  cublasLtMatrixLayout_t result_ = nullptr;
};

class CublasLtArm final : public Arm {
 public:
  ~CublasLtArm() override {
    if (from_ != nullptr) cudaEventDestroy(from_);
    if (to_ != nullptr) cudaEventDestroy(to_);
    if (place_.stream != nullptr) cudaStreamDestroy(place_.stream);
    if (place_.workspace != nullptr) cudaFree(place_.workspace);
    if (place_.handle != nullptr) cublasLtDestroy(place_.handle);
  }

  absl::Status Init(const OperandSets& sets) {
    const GemmProblem& problem = sets.problem(0, Pitch::kDense);
    TCGEMM_RETURN_IF_ERROR(LtStatus(cublasLtCreate(&place_.handle), "cublasLtCreate"));
    TCGEMM_RETURN_IF_ERROR(CudaStatus(
        cudaStreamCreateWithFlags(&place_.stream, cudaStreamNonBlocking), "cudaStreamCreate"));
    TCGEMM_RETURN_IF_ERROR(
        CudaStatus(cudaMalloc(&place_.workspace, kWorkspaceBytes), "cudaMalloc"));
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&from_), "cudaEventCreate"));
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&to_), "cudaEventCreate"));
    Product reference;
    TCGEMM_RETURN_IF_ERROR(reference.Init(problem, DType::kFp32));
    TCGEMM_ASSIGN_OR_RETURN(const auto exact, reference.Heuristics(place_.handle));
    TCGEMM_RETURN_IF_ERROR(reference.Enqueue(place_, problem, sets.reference(), exact[0].algo));
    TCGEMM_RETURN_IF_ERROR(product_.Init(problem, problem.d.dtype));
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(place_.stream), "the reference"));
    return ChooseBest(sets);
  }

  ArmKind kind() const override { return ArmKind::kRival; }
  const std::string& name() const override { return name_; }
  std::string detail() const override { return detail_; }
  Pitch pitch() const override { return Pitch::kDense; }

  absl::StatusOr<double> Burst(const OperandSets& sets, int first_set, int launches) override {
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(from_, place_.stream), "cudaEventRecord"));
    for (int i = 0; i < launches; ++i) {
      const GemmProblem& problem = sets.problem(first_set + i, Pitch::kDense);
      TCGEMM_RETURN_IF_ERROR(product_.Enqueue(place_, problem, problem.d.data, algorithm_));
    }
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(to_, place_.stream), "cudaEventRecord"));
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(to_), "a burst of cuBLASLt"));
    float milliseconds = 0;
    TCGEMM_RETURN_IF_ERROR(
        CudaStatus(cudaEventElapsedTime(&milliseconds, from_, to_), "cudaEventElapsedTime"));
    return milliseconds / 1e3;
  }

 private:
  // Three short bursts of each; the best median wins.
  absl::Status ChooseBest(const OperandSets& sets) {
    TCGEMM_ASSIGN_OR_RETURN(const auto found, product_.Heuristics(place_.handle));
    double best = std::numeric_limits<double>::infinity();
    size_t winner = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      algorithm_ = found[i].algo;
      TCGEMM_RETURN_IF_ERROR(Burst(sets, 0, 2).status());  // warm
      std::array<double, 3> seconds;
      for (size_t round = 0; round < seconds.size(); ++round) {
        TCGEMM_ASSIGN_OR_RETURN(seconds[round], Burst(sets, static_cast<int>(round) * 6, 6));
      }
      std::sort(seconds.begin(), seconds.end());
      if (seconds[1] < best) {
        best = seconds[1];
        winner = i;
      }
    }
    algorithm_ = found[winner].algo;
    detail_ = absl::StrCat("heuristic ", winner, " of ", found.size(), ", workspace ",
                           found[winner].workspaceSize);
    return absl::OkStatus();
  }

  const std::string name_ = "cublaslt";
  std::string detail_;
  Product::Place place_{};
  Product product_;
  cublasLtMatmulAlgo_t algorithm_{};
  cudaEvent_t from_ = nullptr;
  cudaEvent_t to_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Arm>> CreateCublasLtArm(const OperandSets& sets) {
  auto arm = std::make_unique<CublasLtArm>();
  TCGEMM_RETURN_IF_ERROR(arm->Init(sets));
  return arm;
}

}  // namespace tcgemm::bench
