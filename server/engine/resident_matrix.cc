#include "server/engine/resident_matrix.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tcgemm {
namespace {

MatrixView At(MatrixView view, const Lease& memory) {
  view.data = memory.data();
  return view;
}

}  // namespace

ResidentMatrix::ResidentMatrix(Identity identity, MatrixView view, Lease memory)
    : identity_(std::move(identity)), view_(At(view, memory)), memory_(std::move(memory)) {}

size_t ResidentMatrix::dense_bytes() const {
  return static_cast<size_t>(view_.rows) * static_cast<size_t>(view_.cols) * DTypeSize(view_.dtype);
}

std::vector<ByteRange> ResidentMatrix::present() const {
  MutexLock lock(&mutex_);
  return present_.ranges();
}

absl::StatusOr<std::vector<ByteRange>> ResidentMatrix::BeginWrite(const ByteRange& range) {
  if (identity_.product) {
    return absl::FailedPreconditionError(absl::StrCat(
        "matrix '", identity_.handle, "' is the result of a product: it cannot be uploaded to"));
  }
  if (range.begin >= range.end || range.end > dense_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a range of ", range.size(), " bytes at offset ", range.begin,
        " must not be empty and must end within the matrix's ", dense_bytes(), " bytes"));
  }
  MutexLock lock(&mutex_);
  if (claimed_.count() >= kMaxRanges && !claimed_.Contains(range)) {
    return absl::ResourceExhaustedError(absl::StrCat("matrix '", identity_.handle, "' is in ",
                                                     claimed_.count(), " pieces, limit ",
                                                     kMaxRanges, ": send larger ranges in order"));
  }
  std::vector<ByteRange> missing = claimed_.MissingFrom(range);
  claimed_.Add(range);
  return missing;
}

void ResidentMatrix::EndWrite(absl::Span<const ByteRange> ranges, bool written) {
  MutexLock lock(&mutex_);
  for (const ByteRange& range : ranges) {
    written ? present_.Add(range) : claimed_.Remove(range);
    if (written) present_bytes_.fetch_add(range.size(), std::memory_order_relaxed);
  }
  if (present_.Contains({0, dense_bytes()})) complete_.store(true, std::memory_order_release);
}

void ResidentMatrix::SetComplete() {
  MutexLock lock(&mutex_);
  present_.Add({0, dense_bytes()});
  claimed_.Add({0, dense_bytes()});
  present_bytes_.store(dense_bytes(), std::memory_order_relaxed);
  complete_.store(true, std::memory_order_release);
}

}  // namespace tcgemm
