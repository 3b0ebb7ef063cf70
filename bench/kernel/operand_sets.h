// The operands and results of one cell on the device, several times over.
#ifndef TCGEMM_BENCH_KERNEL_OPERAND_SETS_H_
#define TCGEMM_BENCH_KERNEL_OPERAND_SETS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/kernel/cell.h"
#include "kernels/device.h"

namespace tcgemm::bench {

// As a service stores matrices: each row starts at a multiple of 64 elements. Or as users do: each
// row behind the one before it.
enum class Pitch { kPadded, kDense };

// An H200 keeps 60 MB; twice that many bytes of operands pass between two uses of a set.
inline constexpr size_t kRotatedBytes = size_t{120} << 20;

// A cell's problem, padded, without addresses.
GemmProblem PaddedLayout(const Cell& cell);

// Operands and results of one cell, several times over, so that a launch finds nothing of its own
// in L2. All in one block of device memory.
class OperandSets {
 public:
  // INTERNAL when CUDA fails, RESOURCE_EXHAUSTED when the memory is not there.
  static absl::StatusOr<OperandSets> Create(Device& device, const Cell& cell);

  int count() const { return static_cast<int>(padded_.size()); }
  // The same values in both; the same memory where padding changes nothing.
  const GemmProblem& problem(int set, Pitch pitch = Pitch::kPadded) const {
    const std::vector<GemmProblem>& problems = pitch == Pitch::kDense ? dense_ : padded_;
    return problems[set % problems.size()];
  }
  bool padding_matters() const { return padding_matters_; }
  // m×n fp32, ld of the dense D: cuBLASLt's answer for set 0.
  float* reference() const { return reference_; }
  // 0xff in all of both D of set 0.
  absl::Status Poison() const;
  // OK when D of set 0 is as near to the reference as two right products can be.
  absl::Status CheckAgainstReference(Pitch pitch) const;

 private:
  MemoryBlock memory_;
  std::vector<GemmProblem> padded_;
  std::vector<GemmProblem> dense_;
  bool padding_matters_ = false;
  float* reference_ = nullptr;
  void* scratch_ = nullptr;
};

// OK when `d`, a product over `k`, is as near to `reference` (fp32, `ld` elements a row) as two
// right products of standard normals can be; DATA_LOSS otherwise. `scratch`: 4 bytes of device
// memory.
struct FloatMatrix {
  const float* data = nullptr;
  int64_t ld = 0;
};
absl::Status ExpectNear(const MutableMatrixView& d, const FloatMatrix& reference, int64_t k,
                        void* scratch);

// INTERNAL with the text of CUDA's error, unless it is cudaSuccess (0).
absl::Status CudaStatus(int error, const char* what);

}  // namespace tcgemm::bench

#endif  // TCGEMM_BENCH_KERNEL_OPERAND_SETS_H_
