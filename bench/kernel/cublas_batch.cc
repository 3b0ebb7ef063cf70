#include "bench/kernel/cublas_batch.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/kernel/operand_sets.h"

namespace tcgemm::bench {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;

absl::Status BlasStatus(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": ", cublasGetStatusString(status)));
}

// A·Bᵀ, row-major, is B·Aᵀ with everything transposed in cuBLAS's column-major eyes: B goes first
// and is transposed, A is not.
struct Sizes {
  int m, n, k;        // cuBLAS's: m counts columns of D
  int lda, ldb, ldc;  // of B, A and D
  explicit Sizes(const GemmProblem& problem)
      : m(static_cast<int>(problem.shape().n)),
        n(static_cast<int>(problem.shape().m)),
        k(static_cast<int>(problem.shape().k)),
        lda(static_cast<int>(problem.b.ld)),
        ldb(static_cast<int>(problem.a.ld)),
        ldc(static_cast<int>(problem.d.ld)) {}
};

// One array for each argument of cublasGemmGroupedBatchedEx: every product is a group of one.
struct Groups {
  std::vector<cublasOperation_t> transposed, not_transposed;
  std::vector<int> m, n, k, lda, ldb, ldc, sizes;
  std::vector<float> ones, zeros;

  explicit Groups(const std::vector<GemmProblem>& batch)
      : transposed(batch.size(), CUBLAS_OP_T),
        not_transposed(batch.size(), CUBLAS_OP_N),
        sizes(batch.size(), 1),
        ones(batch.size(), 1.0f),
        zeros(batch.size(), 0.0f) {
    for (const GemmProblem& problem : batch) {
      const Sizes size(problem);
      m.push_back(size.m);
      n.push_back(size.n);
      k.push_back(size.k);
      lda.push_back(size.lda);
      ldb.push_back(size.ldb);
      ldc.push_back(size.ldc);
    }
  }
};

class CublasBatchImpl final : public CublasBatch {
 public:
  explicit CublasBatchImpl(const BatchSets& sets) : sets_(sets), groups_(sets.batch(0)) {}
  ~CublasBatchImpl() override {
    if (from_ != nullptr) cudaEventDestroy(from_);
    if (to_ != nullptr) cudaEventDestroy(to_);
    if (handle_ != nullptr) cublasDestroy(handle_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (workspace_ != nullptr) cudaFree(workspace_);
    if (pointers_ != nullptr) cudaFree(pointers_);
  }

  absl::Status Init() {
    const GemmShape first = sets_.batch(0)[0].shape();
    for (const GemmProblem& problem : sets_.batch(0)) uniform_ &= problem.shape() == first;
    TCGEMM_RETURN_IF_ERROR(
        CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&from_), "cudaEventCreate"));
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&to_), "cudaEventCreate"));
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&workspace_, kWorkspaceBytes), "cudaMalloc"));
    TCGEMM_RETURN_IF_ERROR(BlasStatus(cublasCreate(&handle_), "cublasCreate"));
    TCGEMM_RETURN_IF_ERROR(BlasStatus(cublasSetStream(handle_, stream_), "cublasSetStream"));
    TCGEMM_RETURN_IF_ERROR(
        BlasStatus(cublasSetWorkspace(handle_, workspace_, kWorkspaceBytes), "cublasSetWorkspace"));
    return MakePointers();
  }

  absl::Status WriteReferences() override {
    for (size_t i = 0; i < sets_.batch(0).size(); ++i) {
      TCGEMM_RETURN_IF_ERROR(MultiplyOne(sets_.batch(0)[i], sets_.reference(i), CUDA_R_32F));
    }
    return CudaStatus(cudaStreamSynchronize(stream_), "the references");
  }

  absl::StatusOr<double> Loop(int first_set, int batches) override {
    return Time(first_set, batches, [this](int set) {
      for (const GemmProblem& problem : sets_.batch(set)) {
        TCGEMM_RETURN_IF_ERROR(MultiplyOne(problem, problem.d.data, CUDA_R_16BF));
      }
      return absl::OkStatus();
    });
  }
  absl::StatusOr<double> Batched(int first_set, int batches) override {
    return Time(first_set, batches, [this](int set) {
      return uniform_ ? MultiplyStrided(sets_.batch(set)) : MultiplyGrouped(set % sets_.count());
    });
  }

 private:
  template <typename MULTIPLY>
  absl::StatusOr<double> Time(int first_set, int batches, const MULTIPLY& multiply) {
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(from_, stream_), "cudaEventRecord"));
    for (int i = 0; i < batches; ++i) TCGEMM_RETURN_IF_ERROR(multiply(first_set + i));
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(to_, stream_), "cudaEventRecord"));
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(to_), "batches of cuBLAS"));
    float milliseconds = 0;
    TCGEMM_RETURN_IF_ERROR(
        CudaStatus(cudaEventElapsedTime(&milliseconds, from_, to_), "cudaEventElapsedTime"));
    return milliseconds / 1e3;
  }

  absl::Status MultiplyOne(const GemmProblem& problem, void* d, cudaDataType_t type) {
    const Sizes size(problem);
    return BlasStatus(
        cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, size.m, size.n, size.k, &one_,
                     problem.b.data, CUDA_R_16BF, size.lda, problem.a.data, CUDA_R_16BF, size.ldb,
                     &zero_, d, type, size.ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
  }

  absl::Status MultiplyStrided(const std::vector<GemmProblem>& batch) {
    const Sizes size(batch[0]);
    const auto stride = [](const void* first, const void* second) {
      return (static_cast<const std::byte*>(second) - static_cast<const std::byte*>(first)) / 2;
    };
    return BlasStatus(
        cublasGemmStridedBatchedEx(
            handle_, CUBLAS_OP_T, CUBLAS_OP_N, size.m, size.n, size.k, &one_, batch[0].b.data,
            CUDA_R_16BF, size.lda, stride(batch[0].b.data, batch[1].b.data), batch[0].a.data,
            CUDA_R_16BF, size.ldb, stride(batch[0].a.data, batch[1].a.data), &zero_,
            batch[0].d.data, CUDA_R_16BF, size.ldc, stride(batch[0].d.data, batch[1].d.data),
            static_cast<int>(batch.size()), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmStridedBatchedEx");
  }

  absl::Status MultiplyGrouped(int set) {
    const size_t count = groups_.m.size();
    void** const at = pointers_ + 3 * count * set;
    return BlasStatus(
        cublasGemmGroupedBatchedEx(
            handle_, groups_.transposed.data(), groups_.not_transposed.data(), groups_.m.data(),
            groups_.n.data(), groups_.k.data(), groups_.ones.data(), const_cast<const void**>(at),
            CUDA_R_16BF, groups_.lda.data(), const_cast<const void**>(at + count), CUDA_R_16BF,
            groups_.ldb.data(), groups_.zeros.data(), at + 2 * count, CUDA_R_16BF,
            groups_.ldc.data(), static_cast<int>(count), groups_.sizes.data(), CUBLAS_COMPUTE_32F),
        "cublasGemmGroupedBatchedEx");
  }

  // Of every set: those of B, of A, of D, on the device as cuBLAS wants them.
  absl::Status MakePointers() {
    std::vector<const void*> pointers;
    for (int set = 0; set < sets_.count(); ++set) {
      for (const GemmProblem& problem : sets_.batch(set)) pointers.push_back(problem.b.data);
      for (const GemmProblem& problem : sets_.batch(set)) pointers.push_back(problem.a.data);
      for (const GemmProblem& problem : sets_.batch(set)) pointers.push_back(problem.d.data);
    }
    const size_t bytes = pointers.size() * sizeof(void*);
    void* memory = nullptr;
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&memory, bytes), "cudaMalloc"));
    pointers_ = static_cast<void**>(memory);
    return CudaStatus(cudaMemcpy(pointers_, pointers.data(), bytes, cudaMemcpyHostToDevice),
                      "cudaMemcpy");
  }

  const BatchSets& sets_;
  const Groups groups_;
  const float one_ = 1;
  const float zero_ = 0;
  bool uniform_ = true;
  cublasHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t from_ = nullptr;
  cudaEvent_t to_ = nullptr;
  void* workspace_ = nullptr;
  void** pointers_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CublasBatch>> CreateCublasBatch(const BatchSets& sets) {
  auto batch = std::make_unique<CublasBatchImpl>(sets);
  TCGEMM_RETURN_IF_ERROR(batch->Init());
  return batch;
}

}  // namespace tcgemm::bench
