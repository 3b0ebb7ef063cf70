// Brings bytes into resident matrices and back out, through streams of its own.
//
// At most `lanes` copies are under way; more callers wait for one. Each lane has a piece of pinned
// memory that bytes of any host memory pass through on their way to a GPU. With unified memory the
// bytes are copied where they lie.
//
// Failures: a copy that does not end within kCopyLimit makes its lane useless: it, its pinned
// memory and the matrix stay for ever, as the device may still be at them.
#ifndef TCGEMM_SERVER_ENGINE_RESIDENT_TRANSFERS_H_
#define TCGEMM_SERVER_ENGINE_RESIDENT_TRANSFERS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kernels/device.h"
#include "server/engine/engine_events.h"
#include "server/engine/resident_matrix.h"

namespace tcgemm {

using HostBytes = absl::Span<const std::byte>;

// Thread-safe; both copies block.
class ResidentTransfers {
 public:
  static constexpr size_t kPieceBytes = size_t{1} << 20;
  static constexpr Nanos kCopyLimit = std::chrono::seconds(10);

  // `device` and `events` must outlive it. Errors are the device's.
  static absl::StatusOr<std::unique_ptr<ResidentTransfers>> Create(Device* device,
                                                                   EngineEvents* events, int lanes);
  // Must not be destroyed once hung().
  ~ResidentTransfers();

  // The bytes of `pieces`, in order, become those of the matrix from `offset` on (dense bytes);
  // what is there already stays as it is. Errors of ResidentMatrix::BeginWrite; INTERNAL when the
  // device fails: then the bytes may be sent again.
  absl::Status Write(const ResidentRef& matrix, size_t offset, absl::Span<const HostBytes> pieces)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Bytes of a complete matrix to `to`. INVALID_ARGUMENT when the range ends beyond it; INTERNAL
  // when the device fails.
  absl::Status Read(const ResidentRef& matrix, const ByteRange& range, std::byte* to)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // A copy did not end.
  bool hung() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Lane;
  enum class Direction { kIn, kOut };

  ResidentTransfers(Device* device, EngineEvents* events);
  absl::StatusOr<Lane*> TakeLane() ABSL_LOCKS_EXCLUDED(mutex_);
  void ReturnLane(Lane* lane) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status WriteMissing(const ResidentRef& matrix, const ByteRange& missing, size_t offset,
                            absl::Span<const HostBytes> pieces);
  // Between the lane's pinned memory, or host memory on a unified device, and the matrix.
  absl::Status Copy(Lane& lane, const ResidentRef& matrix, const ByteRange& range, std::byte* host,
                    Direction direction) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Note(DeviceErrorKind kind, absl::Status status);

  Device* const device_;
  EngineEvents* const events_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  mutable Mutex mutex_;
  CondVar free_cv_;
  std::vector<Lane*> free_ ABSL_GUARDED_BY(mutex_);
  size_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The copies between dense host bytes at `host` and the bytes `range` of a matrix whose rows are
// padded: a part of a row, whole rows, a part of a row. `into`: towards the matrix.
std::vector<Copy2d> PlanRangeCopies(const MatrixView& view, const ByteRange& range, std::byte* host,
                                    bool into);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_RESIDENT_TRANSFERS_H_
