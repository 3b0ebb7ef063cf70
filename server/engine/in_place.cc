#include "server/engine/in_place.h"

#include <cmath>

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

// What the tiles of one product read over the bus: the rows of A once for every 128 columns of D,
// those of op(B) once for every 128 rows. Some tiles are narrower; 128 is what small products get.
double TileTraffic(const GemmProblem& problem, const OnDevice& on_device) {
  constexpr double kTile = 128;
  const GemmShape shape = problem.shape();
  const auto reads = [&](const MatrixView& view, bool is_there, int64_t across) {
    if (is_there) return 0.0;
    const double bytes = static_cast<double>(view.rows) * static_cast<double>(view.cols) *
                         static_cast<double>(DTypeSize(view.dtype));
    return bytes * std::ceil(static_cast<double>(across) / kTile);
  };
  return reads(problem.a, on_device.a, shape.n) + reads(problem.b, on_device.b, shape.m);
}

}  // namespace

bool StaysInPlace(absl::Span<const StackCandidate> jobs, const InPlaceRule& rule) {
  if (!rule.reads_pinned) return false;
  size_t bytes = 0;
  double traffic = 0;
  for (const auto& [problem, on_device, in_region] : jobs) {
    if (in_region || (!on_device.d && !MayStoreInPlace(problem))) return false;
    if (!on_device.c && !MayReadCInPlace(problem.epilogue)) return false;
    bytes += SlabBytes(problem, rule.pitch_alignment, on_device);
    traffic += TileTraffic(problem, on_device);
    if (bytes > rule.max_bytes || traffic > 2 * static_cast<double>(rule.max_bytes)) return false;
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
