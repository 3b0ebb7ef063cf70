// An arm: one way to compute a cell's product, over the same operand sets as its rivals.
#ifndef TCGEMM_BENCH_KERNEL_ARM_H_
#define TCGEMM_BENCH_KERNEL_ARM_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/kernel/cell.h"
#include "bench/kernel/operand_sets.h"
#include "kernels/device.h"
#include "kernels/plan.h"

namespace tcgemm::bench {

class Arm {
 public:
  virtual ~Arm() = default;
  virtual ArmKind kind() const = 0;
  virtual const std::string& name() const = 0;
  virtual std::string detail() const = 0;
  // Of one of ours.
  virtual Plan plan() const { return {}; }
  // Whose operands it reads and where it writes.
  virtual Pitch pitch() const { return Pitch::kPadded; }
  // Seconds from the start of the first to the end of the last of `launches` products over the sets
  // from `first_set` on, back to back. The device is idle before and after.
  virtual absl::StatusOr<double> Burst(const OperandSets& sets, int first_set, int launches) = 0;
};

// Our kernel, through the Device. With a tile: that one instead of ChoosePlan's.
absl::StatusOr<std::unique_ptr<Arm>> CreateOurArm(Device& device, KernelId kernel,
                                                  const GpuTile* tile, const OperandSets& sets);
// ChoosePlan's with room for partial sums: it may split K.
absl::StatusOr<std::unique_ptr<Arm>> CreateFastestArm(Device& device, const OperandSets& sets);
// The first of the device's kernels that takes the dense operands where they are; simt takes any.
absl::StatusOr<std::unique_ptr<Arm>> CreateInPlaceArm(Device& device, const OperandSets& sets);
// cuBLASLt's best of eight heuristics on the dense operands, each timed on these sets. Writes
// sets.reference() first. FAILED_PRECONDITION when it has none for this cell.
absl::StatusOr<std::unique_ptr<Arm>> CreateCublasLtArm(const OperandSets& sets);
// Reads the bytes of B by bulk copies into shared memory and does nothing else. INTERNAL when what
// it read is not what lies there. Needs sm_90.
absl::StatusOr<std::unique_ptr<Arm>> CreateReadProbeArm(Device& device, const OperandSets& sets);

}  // namespace tcgemm::bench

#endif  // TCGEMM_BENCH_KERNEL_ARM_H_
