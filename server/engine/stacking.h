// Which jobs of a batch become one taller product: policy and arithmetic alone.
//
// Jobs that multiply by the same resident B are one product whose A is all of theirs, one above the
// other: the kernel reads B once, and fills its tiles with rows of several requests. A row of D
// depends on its own row of op(A) alone, so every request gets the bits that it gets alone. The
// rows lie one after the other in the slot's slab, where each job's copy brings them; nothing is
// copied again. Rows of C and of a column of bias lie so too; a row of bias, added to every row of
// D, must be one resident matrix as B is.
#ifndef TCGEMM_SERVER_ENGINE_STACKING_H_
#define TCGEMM_SERVER_ENGINE_STACKING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/gemm.h"
#include "server/engine/slab.h"

namespace tcgemm {

// A job of a batch, as stacking sees it.
struct StackCandidate {
  GemmProblem problem;
  OnDevice on_device;
  bool in_region = false;  // one of its matrices lies in shared memory, as its client likes
};

// The jobs of each product of a launch, by index: in order of their first one, and in order of
// arrival within it. Stacked are those with the same resident B, transposed alike, and one output
// type, whose A is not transposed (its rows are rows of D) and comes from the host, as D goes to
// it; whose alpha, beta and activation are the same; and who have, all or none, a C of one type
// from the host, a column of bias of one type from the host, or the same resident row of bias.
// Every other job is alone.
std::vector<std::vector<size_t>> PlanStacks(absl::Span<const StackCandidate> jobs);

// The jobs of one stack (at least one; all alike as above) as one product at `at`, and where each
// of them lies in it. It takes SlabBytes of the product, which is at most the sum of theirs.
struct PlacedStack {
  GemmProblem product;
  std::vector<GemmProblem> members;
};
PlacedStack PlaceStack(absl::Span<const GemmProblem> members, int64_t pitch_alignment,
                       std::byte* at);

// A batch as the device sees it.
struct PlacedBatch {
  std::vector<GemmProblem> placed;          // of each job
  std::vector<GemmProblem> problems;        // of the launch: a stack of jobs is one
  std::vector<std::vector<size_t>> stacks;  // the jobs of each problem
};
// Stacked, in a slab from `at` on, which has SlabBytes of every job.
PlacedBatch PlaceBatch(absl::Span<const StackCandidate> jobs, int64_t pitch_alignment,
                       std::byte* at);
// With unified memory: every job alone, since its rows stay where they are.
PlacedBatch LeaveInPlace(absl::Span<const StackCandidate> jobs);
// Jobs that share their problem with others.
int CountStacked(const PlacedBatch& batch);

// What is left of a slab behind the flags and matrices of a job that is alone: for the sums of a
// product whose K is split. Nothing with unified memory, where there is no slab.
SplitWorkspace RestOfSlab(const MemoryBlock& slab, const StackCandidate& alone,
                          int64_t pitch_alignment);

// Whether one element is NaN or Inf. For the rare stack whose flag says that some element is.
bool HasNonfinite(const MatrixView& matrix);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_STACKING_H_
