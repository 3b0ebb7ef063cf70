// Many small products: one launch of ours beside cuBLAS's calls, one by one and batched.
#ifndef TCGEMM_BENCH_KERNEL_BATCH_H_
#define TCGEMM_BENCH_KERNEL_BATCH_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace tcgemm::bench {

// A·Bᵀ, bf16, dense.
struct BatchCase {
  std::string name;  // "64x128^3"
  std::vector<GemmShape> shapes;
  // Operands and results of so many batches take turns: as many as a server has batches in flight,
  // whose memory and tensor maps it meets again; or 0, more than the L2 cache holds.
  int sets = 0;

  bool uniform() const;  // all shapes are one
};
// 8x1024³, 16x512³, 64x128³, 32x256³, and 48 products with M from 1 to 500 by N = K = 1024; each
// with sets past the L2 cache and with three.
std::vector<BatchCase> BatchCases();

// The operands and results of a batch, several times over.
class BatchSets {
 public:
  // INTERNAL when CUDA fails, RESOURCE_EXHAUSTED when the memory is not there.
  static absl::StatusOr<BatchSets> Create(Device& device, const BatchCase& batch);

  int count() const { return static_cast<int>(sets_.size()); }
  const std::vector<GemmProblem>& batch(int set) const { return sets_[set % sets_.size()]; }
  // m×n fp32, dense, for problem i of set 0: cuBLAS's answer.
  float* reference(size_t i) const { return references_[i]; }
  absl::Status Poison() const;  // of the results of set 0
  absl::Status CheckAgainstReference() const;

 private:
  MemoryBlock memory_;
  std::vector<std::vector<GemmProblem>> sets_;
  std::vector<float*> references_;
  void* scratch_ = nullptr;
};

struct BatchResult {
  BatchCase batch;
  std::string kernel;  // of the one launch
  double one_launch_seconds = 0;
  double one_by_one_seconds = 0;      // as many launches of ours
  double cublas_loop_seconds = 0;     // cublasGemmEx, one by one
  double cublas_batched_seconds = 0;  // strided batched where the shapes are one, else grouped
};
// ChoosePlan's kernels. Every arm is checked against cuBLAS's fp32 products first; DATA_LOSS when
// one is wrong. Medians of `rounds` in turns, each of some batches back to back.
absl::StatusOr<BatchResult> MeasureBatch(Device& device, const BatchCase& batch, int rounds);

}  // namespace tcgemm::bench

#endif  // TCGEMM_BENCH_KERNEL_BATCH_H_
