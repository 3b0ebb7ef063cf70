// cuBLAS's ways to compute a batch.
#ifndef TCGEMM_BENCH_KERNEL_CUBLAS_BATCH_H_
#define TCGEMM_BENCH_KERNEL_CUBLAS_BATCH_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/kernel/batch.h"

namespace tcgemm::bench {

class CublasBatch {
 public:
  virtual ~CublasBatch() = default;
  // The fp32 products of set 0 into sets.reference().
  virtual absl::Status WriteReferences() = 0;
  // Seconds of `batches` batches from set `first_set` on, back to back. The device is idle before
  // and after.
  virtual absl::StatusOr<double> Loop(int first_set, int batches) = 0;
  virtual absl::StatusOr<double> Batched(int first_set, int batches) = 0;
};

// `sets` must outlive it. INTERNAL when cuBLAS or CUDA fails.
absl::StatusOr<std::unique_ptr<CublasBatch>> CreateCublasBatch(const BatchSets& sets);

}  // namespace tcgemm::bench

#endif  // TCGEMM_BENCH_KERNEL_CUBLAS_BATCH_H_
