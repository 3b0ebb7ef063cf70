#include "server/engine/in_place.h"

#include "server/engine/slab.h"

namespace tcgemm {
namespace {

// TMA's stores and the kernels' vector stores want rows on 16 bytes.
bool MayStoreInPlace(const GemmProblem& problem) {
  constexpr uintptr_t kUnit = 16;
  const size_t row_bytes = static_cast<size_t>(problem.d.ld) * DTypeSize(problem.d.dtype);
  return reinterpret_cast<uintptr_t>(problem.d.data) % kUnit == 0 && row_bytes % kUnit == 0;
}

// Pairs of C's elements in one load; D's neighbours are C's.
bool MayReadCInPlace(const Epilogue& epilogue) {
  constexpr uintptr_t kUnit = 8;
  return !epilogue.reads_c() ||
         (reinterpret_cast<uintptr_t>(epilogue.c.data) % kUnit == 0 && epilogue.c.ld % 2 == 0);
}

}  // namespace

bool StaysInPlace(absl::Span<const StackCandidate> jobs, const InPlaceRule& rule) {
  if (!rule.reads_pinned) return false;
  size_t bytes = 0;
  for (const auto& [problem, on_device, in_region] : jobs) {
    if (in_region || (!on_device.d && !MayStoreInPlace(problem))) return false;
    if (!on_device.c && !MayReadCInPlace(problem.epilogue)) return false;
    bytes += SlabBytes(problem, rule.pitch_alignment, on_device);
    if (bytes > rule.max_bytes) return false;
  }
  return PlanStacks(jobs).size() == jobs.size();
}

BusBytes InPlaceBytes(absl::Span<const StackCandidate> jobs) {
  BusBytes bytes;
  for (const auto& [problem, on_device, in_region] : jobs) {
    bytes.in += PlanOperandCopies(problem, problem, on_device).payload_bytes;
    if (!on_device.d) bytes.out += CopyBytes(PlanResultCopy(problem, problem));
  }
  return bytes;
}

}  // namespace tcgemm
