// K in parts, for Reduction::kFastest: where a product has too few tiles for all multiprocessors,
// each part of K is a product of its own in one grouped launch, into fp32 partial sums in a
// workspace; split_reduce.cu adds them, part 0 first. Host code, tested without a GPU.
//
// A part is a range of whole steps of 64 of K, so that its operands stay aligned as the whole's
// are. The result is a function of shape and chip, as the plan is: the same bits each time; other
// bits than the default reduction's.
#ifndef TCGEMM_KERNELS_SPLIT_K_H_
#define TCGEMM_KERNELS_SPLIT_K_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/gemm.h"
#include "kernels/plan.h"

namespace tcgemm {

inline constexpr int kMaxSplits = 16;
inline constexpr int64_t kSplitStep = 64;  // of K

// Elements from row to row of the partial sums.
int64_t SplitLd(int64_t n);
// What `splits` partial sums of m×n take; the largest size_t when that is more.
size_t SplitWorkspaceBytes(const GemmShape& shape, int splits);

// The parts of `problem` (2 … kMaxSplits, at most its steps of K), whose sums lie in `workspace`
// one behind the other: fp32, no epilogue. Valid while the returned object is.
class SplitParts {
 public:
  SplitParts(const GemmProblem& problem, int splits, std::byte* workspace);
  absl::Span<const GemmProblem> problems() const { return {parts_.data(), count_}; }

 private:
  std::array<GemmProblem, kMaxSplits> parts_;
  size_t count_ = 0;
};

// `whole`, or the plan with K split, where the cost model says that it is faster, the problem has
// room for the sums (GemmProblem::workspace) and the chip runs tma_wgmma.
Plan SplitWhereFaster(const PlanLimits& limits, const GemmProblem& problem, const Plan& whole);

// The launch of the parts that a plan with splits > 1 asks for.
Plan PlanOfParts(const Plan& plan, absl::Span<const GemmProblem> parts);

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_SPLIT_K_H_
