#include "server/engine/slab.h"

#include <limits>

namespace tcgemm {
namespace {

// Every matrix in a slab starts on this: more than the 128 bytes that TMA's swizzled boxes want.
constexpr size_t kSlabAlignment = 256;

// What one copy may bring beside the operands.
constexpr size_t kMaxIdleCopyBytes = size_t{64} << 10;

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

template <typename View>
int64_t SlabPitch(const View& view, int64_t pitch_alignment) {
  return (view.cols + pitch_alignment - 1) / pitch_alignment * pitch_alignment;
}

template <typename View>
size_t SlabMatrixBytes(const View& view, int64_t pitch_alignment) {
  const size_t pitch = static_cast<size_t>(SlabPitch(view, pitch_alignment));
  return RoundUp(static_cast<size_t>(view.rows) * pitch * DTypeSize(view.dtype), kSlabAlignment);
}

// Moves a view, and makes it start after the previous one.
template <typename View>
void Place(View& view, int64_t pitch_alignment, std::byte*& at) {
  const size_t bytes = SlabMatrixBytes(view, pitch_alignment);
  view.data = at;
  view.ld = SlabPitch(view, pitch_alignment);
  at += bytes;
}

// The copy of a matrix between two views of the same shape. The engine placed `to` itself, in
// memory that it may write.
Copy2d CopyBetween(const MatrixView& to, const MatrixView& from) {
  const size_t size = DTypeSize(from.dtype);
  return {.destination = const_cast<void*>(to.data),
          .source = from.data,
          .destination_pitch = static_cast<size_t>(to.ld) * size,
          .source_pitch = static_cast<size_t>(from.ld) * size,
          .row_bytes = static_cast<size_t>(from.cols) * size,
          .rows = from.rows};
}

// Bytes from `first` to `second`; as a number, since the two may be of different allocations.
int64_t Distance(const void* first, const void* second) {
  return static_cast<int64_t>(reinterpret_cast<intptr_t>(second) -
                              reinterpret_cast<intptr_t>(first));
}

bool LieAlike(const GemmProblem& host, const GemmProblem& placed) {
  return host.a.ld == placed.a.ld && host.b.ld == placed.b.ld &&
         Distance(host.a.data, host.b.data) == Distance(placed.a.data, placed.b.data);
}

}  // namespace

size_t SlabBytes(const GemmProblem& problem, int64_t pitch_alignment, const OnDevice& on_device) {
  double estimate = 0;
  for (const MatrixView& view : {problem.a, problem.b, AsConst(problem.d)}) {
    const double pitch = static_cast<double>(view.cols) + static_cast<double>(pitch_alignment);
    estimate += static_cast<double>(view.rows) * pitch * 4 + kSlabAlignment;
  }
  if (estimate > 0x1p62) return std::numeric_limits<size_t>::max();
  return (on_device.a ? 0 : SlabMatrixBytes(problem.a, pitch_alignment)) +
         (on_device.b ? 0 : SlabMatrixBytes(problem.b, pitch_alignment)) +
         (on_device.d ? 0 : SlabMatrixBytes(problem.d, pitch_alignment));
}

size_t SlabFlagBytes(int jobs) {
  return RoundUp(static_cast<size_t>(jobs) * sizeof(uint32_t), kSlabAlignment);
}

size_t SlabCapacity(size_t slab_bytes, int max_batch) {
  const size_t flags = SlabFlagBytes(max_batch);
  return slab_bytes > flags ? slab_bytes - flags : 0;
}

GemmProblem PlaceInSlab(const GemmProblem& problem, int64_t pitch_alignment, std::byte* at,
                        const OnDevice& on_device) {
  GemmProblem placed = problem;
  if (!on_device.a) Place(placed.a, pitch_alignment, at);
  if (!on_device.b) Place(placed.b, pitch_alignment, at);
  if (!on_device.d) Place(placed.d, pitch_alignment, at);
  return placed;
}

OperandCopies PlanOperandCopies(const GemmProblem& host, const GemmProblem& placed,
                                const OnDevice& on_device, bool one_memory) {
  OperandCopies plan;
  const auto add = [&plan](const Copy2d& copy) {
    if (CopyBytes(copy) == 0) return;  // K = 0
    plan.copies[plan.count++] = copy;
    plan.payload_bytes += CopyBytes(copy);
  };
  if (!on_device.a) add(CopyBetween(placed.a, host.a));
  if (!on_device.b) add(CopyBetween(placed.b, host.b));
  if (plan.count < 2 || !one_memory || !LieAlike(host, placed)) return plan;
  const int64_t distance = Distance(placed.a.data, placed.b.data);
  if (distance < static_cast<int64_t>(host.a.span_bytes())) return plan;
  const size_t bytes = static_cast<size_t>(distance) + host.b.span_bytes();
  if (bytes - plan.payload_bytes > kMaxIdleCopyBytes) return plan;
  plan.copies[0].destination_pitch = bytes;
  plan.copies[0].source_pitch = bytes;
  plan.copies[0].row_bytes = bytes;
  plan.copies[0].rows = 1;
  plan.count = 1;
  return plan;
}

Copy2d PlanResultCopy(const GemmProblem& host, const GemmProblem& placed) {
  return CopyBetween(AsConst(host.d), AsConst(placed.d));
}

}  // namespace tcgemm
