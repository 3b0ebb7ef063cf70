#include "client/range.h"

#include <algorithm>
#include <utility>

namespace tcgemm::client {

size_t DenseBytes(const MatrixView& matrix) {
  return static_cast<size_t>(matrix.rows) * static_cast<size_t>(matrix.cols) *
         DTypeSize(matrix.dtype);
}

std::vector<Range> MissingRanges(std::vector<Range> present, size_t total) {
  std::erase_if(present, [](const Range& range) { return range.begin >= range.end; });
  std::sort(present.begin(), present.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> missing;
  size_t at = 0;
  for (const Range& range : present) {
    const size_t begin = std::min(range.begin, total);
    if (begin > at) missing.push_back({at, begin});
    at = std::max(at, std::min(range.end, total));
  }
  if (at < total) missing.push_back({at, total});
  return missing;
}

std::vector<Range> CutEvenly(size_t total, int parts, size_t unit) {
  const size_t units = (total + unit - 1) / unit;
  const auto count = static_cast<size_t>(parts);
  std::vector<Range> ranges;
  for (size_t part = 0; part < count; ++part) {
    const Range range{std::min(total, units * part / count * unit),
                      std::min(total, units * (part + 1) / count * unit)};
    if (range.begin < range.end) ranges.push_back(range);
  }
  return ranges;
}

RangeQueue::RangeQueue(std::vector<Range> ranges, size_t piece) : piece_(piece) {
  std::erase_if(ranges, [](const Range& range) { return range.begin >= range.end; });
  std::reverse(ranges.begin(), ranges.end());
  const MutexLock lock(&mutex_);
  ranges_ = std::move(ranges);
}

std::optional<Range> RangeQueue::Next() {
  const MutexLock lock(&mutex_);
  if (ranges_.empty()) return std::nullopt;
  Range& first = ranges_.back();
  const Range piece{first.begin, first.begin + std::min(first.size(), piece_)};
  first.begin = piece.end;
  if (first.begin == first.end) ranges_.pop_back();
  return piece;
}

bool RangeQueue::empty() const {
  const MutexLock lock(&mutex_);
  return ranges_.empty();
}

}  // namespace tcgemm::client
