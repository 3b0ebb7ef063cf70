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

// Rows of one element would be padded a hundredfold, and no kernel asks for a bias's alignment.
int64_t BiasPitch(const MatrixView& bias, int64_t pitch_alignment) {
  return bias.cols == 1 ? 1 : SlabPitch(bias, pitch_alignment);
}

template <typename View>
size_t MatrixBytes(const View& view, int64_t pitch) {
  const size_t elements = static_cast<size_t>(view.rows) * static_cast<size_t>(pitch);
  return RoundUp(elements * DTypeSize(view.dtype), kSlabAlignment);
}

template <typename View>
size_t SlabMatrixBytes(const View& view, int64_t pitch_alignment) {
  return MatrixBytes(view, SlabPitch(view, pitch_alignment));
}

// Moves a view, and makes it start after the previous one.
template <typename View>
void Place(View& view, int64_t pitch, std::byte*& at) {
  const size_t bytes = MatrixBytes(view, pitch);
  view.data = at;
  view.ld = pitch;
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

// Collects copies of operands in order; one that lies behind the last as it does on the other side
// joins it, if all of them are out of one memory.
class CopyCollector {
 public:
  explicit CopyCollector(bool one_memory) : one_memory_(one_memory) {}

  void Add(const MatrixView& host, const MatrixView& placed) {
    const Copy2d copy = CopyBetween(placed, host);
    const size_t payload = CopyBytes(copy);
    if (payload == 0) return;  // K = 0
    plan_.payload_bytes += payload;
    const bool alike = host.ld == placed.ld;
    if (alike && Join(host, placed, payload)) return;
    plan_.copies[plan_.count++] = copy;
    joinable_ = alike;
    run_bytes_ = host.span_bytes();
    run_payload_ = payload;
  }
  const OperandCopies& plan() const { return plan_; }

 private:
  bool Join(const MatrixView& host, const MatrixView& placed, size_t payload) {
    if (!one_memory_ || !joinable_) return false;
    Copy2d& last = plan_.copies[plan_.count - 1];
    const int64_t distance = Distance(last.destination, placed.data);
    if (Distance(last.source, host.data) != distance) return false;
    if (distance < static_cast<int64_t>(run_bytes_)) return false;
    const size_t bytes = static_cast<size_t>(distance) + host.span_bytes();
    if (bytes - run_payload_ - payload > kMaxIdleCopyBytes) return false;
    last.destination_pitch = bytes;
    last.source_pitch = bytes;
    last.row_bytes = bytes;
    last.rows = 1;
    run_bytes_ = bytes;
    run_payload_ += payload;
    return true;
  }

  bool one_memory_;
  OperandCopies plan_;
  bool joinable_ = false;   // the last copy has one pitch on both sides
  size_t run_bytes_ = 0;    // from its first byte to its last
  size_t run_payload_ = 0;  // of them, operands
};

}  // namespace

size_t SlabBytes(const GemmProblem& problem, int64_t pitch_alignment, const OnDevice& on_device) {
  const Epilogue& epilogue = problem.epilogue;
  const MatrixView c = epilogue.reads_c() ? epilogue.c : MatrixView{};
  double estimate = 0;
  for (const MatrixView& view : {problem.a, problem.b, c, epilogue.bias, AsConst(problem.d)}) {
    const double pitch = static_cast<double>(view.cols) + static_cast<double>(pitch_alignment);
    estimate += static_cast<double>(view.rows) * pitch * 4 + kSlabAlignment;
  }
  if (estimate > 0x1p62) return std::numeric_limits<size_t>::max();
  const size_t bias_bytes = MatrixBytes(epilogue.bias, BiasPitch(epilogue.bias, pitch_alignment));
  return (on_device.a ? 0 : SlabMatrixBytes(problem.a, pitch_alignment)) +
         (on_device.b ? 0 : SlabMatrixBytes(problem.b, pitch_alignment)) +
         (on_device.c ? 0 : SlabMatrixBytes(c, pitch_alignment)) +
         (on_device.bias ? 0 : bias_bytes) +
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
  const auto place = [&at, pitch_alignment](auto& view) {
    Place(view, SlabPitch(view, pitch_alignment), at);
  };
  Epilogue& epilogue = placed.epilogue;
  if (!on_device.a) place(placed.a);
  if (!on_device.b) place(placed.b);
  if (!on_device.c && epilogue.reads_c()) place(epilogue.c);
  if (!on_device.bias && epilogue.has_bias()) {
    Place(epilogue.bias, BiasPitch(epilogue.bias, pitch_alignment), at);
  }
  if (!on_device.d) place(placed.d);
  return placed;
}

OperandCopies PlanOperandCopies(const GemmProblem& host, const GemmProblem& placed,
                                const OnDevice& on_device, bool one_memory) {
  CopyCollector copies(one_memory);
  if (!on_device.a) copies.Add(host.a, placed.a);
  if (!on_device.b) copies.Add(host.b, placed.b);
  if (!on_device.c && host.epilogue.reads_c()) copies.Add(host.epilogue.c, placed.epilogue.c);
  if (!on_device.bias && host.epilogue.has_bias()) {
    copies.Add(host.epilogue.bias, placed.epilogue.bias);
  }
  return copies.plan();
}

Copy2d PlanResultCopy(const GemmProblem& host, const GemmProblem& placed) {
  return CopyBetween(AsConst(host.d), AsConst(placed.d));
}

}  // namespace tcgemm
