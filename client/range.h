// Parts of a matrix that travel: which are missing, and who takes the next one.
#ifndef TCGEMM_CLIENT_RANGE_H_
#define TCGEMM_CLIENT_RANGE_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "base/mutex.h"
#include "matrix/matrix_view.h"

namespace tcgemm::client {

// [begin, end), in bytes of the dense matrix.
struct Range {
  size_t begin = 0;
  size_t end = 0;

  size_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Bytes of the matrix without its gaps.
size_t DenseBytes(const MatrixView& matrix);

// What `present` leaves of [0, total). It may be in any order, overlap, and reach beyond: it comes
// from a server.
std::vector<Range> MissingRanges(std::vector<Range> present, size_t total);

// [0, total) in `parts` ≥ 1 of nearly the same size, each but the last a multiple of `unit` ≥ 1;
// fewer where there is not a unit for each. None of them is empty.
std::vector<Range> CutEvenly(size_t total, int parts, size_t unit);

// Ranges that several lanes share: each takes a piece when it is done with the last one, so that a
// slow lane holds nobody up by more than a piece. Thread-safe.
class RangeQueue {
 public:
  // Pieces hold at most `piece` ≥ 1 bytes.
  RangeQueue(std::vector<Range> ranges, size_t piece);

  // The next one, in order; none when there are no more.
  std::optional<Range> Next() ABSL_LOCKS_EXCLUDED(mutex_);
  // Next has nothing more.
  bool empty() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const size_t piece_;
  mutable Mutex mutex_;
  std::vector<Range> ranges_ ABSL_GUARDED_BY(mutex_);  // the next one last
};

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_RANGE_H_
