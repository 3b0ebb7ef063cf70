// An arm: one way to compute a cell's product, over the same operand sets as its rivals.
#ifndef TCGEMM_BENCH_KERNEL_ARM_H_
#define TCGEMM_BENCH_KERNEL_ARM_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/kernel/cell.h"
#include "kernels/device.h"
#include "kernels/plan.h"

namespace tcgemm::bench {

// Operands and results of one cell, several times over, so that a launch finds nothing of its own
// in L2. All in one block of device memory.
class OperandSets {
 public:
  // INTERNAL when CUDA fails, RESOURCE_EXHAUSTED when the memory is not there.
  static absl::StatusOr<OperandSets> Create(Device& device, const Cell& cell);

  int count() const { return static_cast<int>(problems_.size()); }
  const GemmProblem& problem(int set) const { return problems_[set % problems_.size()]; }
  // m×n fp32, ld of D: cuBLASLt's answer for set 0.
  float* reference() const { return reference_; }
  int64_t ldd() const { return problems_[0].d.ld; }
  // 0xff in all of D of set 0.
  absl::Status Poison() const;
  // OK when D of set 0 is as near to the reference as two right products can be.
  absl::Status CheckAgainstReference() const;

 private:
  MemoryBlock memory_;
  std::vector<GemmProblem> problems_;
  float* reference_ = nullptr;
  void* scratch_ = nullptr;
};

class Arm {
 public:
  virtual ~Arm() = default;
  virtual const std::string& name() const = 0;
  virtual std::string detail() const = 0;
  // Seconds from the start of the first to the end of the last of `launches` products over the sets
  // from `first_set` on, back to back. The device is idle before and after.
  virtual absl::StatusOr<double> Burst(const OperandSets& sets, int first_set, int launches) = 0;
};

// Our kernel, through the Device. With a tile: that one instead of ChoosePlan's.
absl::StatusOr<std::unique_ptr<Arm>> CreateOurArm(Device& device, KernelId kernel,
                                                  const GpuTile* tile, const OperandSets& sets);
// cuBLASLt's best of eight heuristics, each timed on these sets. Writes sets.reference() first.
// FAILED_PRECONDITION when it has none for this cell.
absl::StatusOr<std::unique_ptr<Arm>> CreateCublasLtArm(const OperandSets& sets);

// INTERNAL with the text of CUDA's error, unless it is cudaSuccess (0).
absl::Status CudaStatus(int error, const char* what);

}  // namespace tcgemm::bench

#endif  // TCGEMM_BENCH_KERNEL_ARM_H_
