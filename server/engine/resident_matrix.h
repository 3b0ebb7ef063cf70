// A matrix that stays on the server: where it lies, whose it is, and which of its bytes are there.
//
// Its bytes are written once. Several writers may fill it at the same time: each asks with
// BeginWrite which bytes it has to bring, and says with EndWrite that they are there. What is there
// never changes again, so that readers need no lock.
#ifndef TCGEMM_SERVER_ENGINE_RESIDENT_MATRIX_H_
#define TCGEMM_SERVER_ENGINE_RESIDENT_MATRIX_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "matrix/matrix_view.h"
#include "server/engine/buffer_pool.h"
#include "server/engine/caller.h"
#include "server/engine/range_set.h"

namespace tcgemm {

// Thread-safe.
class ResidentMatrix {
 public:
  // Ranges apart from each other in one matrix; one more is RESOURCE_EXHAUSTED.
  static constexpr size_t kMaxRanges = 1024;

  struct Identity {
    std::string handle;
    std::string name;  // empty, or the handle
    Caller owner;
    bool preloaded = false;
    bool product = false;      // a Matmul fills it, no upload may
    std::string creation_key;  // of its maker, who may ask for it again by it; empty: none
    uint64_t generation = 0;   // no two matrices of a store have the same one; never 0
  };

  // `memory` has room for view.rows rows of view.ld elements; view.data is set to it.
  ResidentMatrix(Identity identity, MatrixView view, Lease memory);

  const Identity& identity() const { return identity_; }
  // Device memory; host memory too on a device with unified memory.
  const MatrixView& view() const { return view_; }
  // Of the matrix without what pads its rows: what uploads and downloads count in.
  size_t dense_bytes() const;
  size_t memory_bytes() const { return memory_.bytes(); }

  // Every byte is there: from then on it may be read.
  bool complete() const { return complete_.load(std::memory_order_acquire); }
  // How many of the dense bytes.
  size_t present_bytes() const { return present_bytes_.load(std::memory_order_relaxed); }
  // In order; no two touch.
  std::vector<ByteRange> present() const ABSL_LOCKS_EXCLUDED(mutex_);

  // The parts of `range` (dense bytes) that are neither there nor on their way: the caller brings
  // them and then calls EndWrite with them. INVALID_ARGUMENT when the range is empty or ends
  // beyond the matrix, FAILED_PRECONDITION for the result of a product, RESOURCE_EXHAUSTED when
  // the matrix is in too many pieces.
  absl::StatusOr<std::vector<ByteRange>> BeginWrite(const ByteRange& range)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // `written`: they are there. Otherwise somebody else may bring them.
  void EndWrite(absl::Span<const ByteRange> ranges, bool written) ABSL_LOCKS_EXCLUDED(mutex_);
  // Everything is there at once: a product has written it.
  void SetComplete() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const Identity identity_;
  const MatrixView view_;
  const Lease memory_;
  std::atomic<bool> complete_{false};
  std::atomic<size_t> present_bytes_{0};
  mutable Mutex mutex_;
  RangeSet present_ ABSL_GUARDED_BY(mutex_);
  RangeSet claimed_ ABSL_GUARDED_BY(mutex_);  // there, or on their way
};

// A reference: while there is one, the matrix's memory stays, deleted or not.
using ResidentRef = std::shared_ptr<ResidentMatrix>;

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_RESIDENT_MATRIX_H_
