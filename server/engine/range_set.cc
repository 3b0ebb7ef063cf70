#include "server/engine/range_set.h"

#include <algorithm>
#include <iterator>

namespace tcgemm {

void RangeSet::Add(const ByteRange& range) {
  if (range.begin >= range.end) return;
  ByteRange merged = range;
  auto it = ends_.upper_bound(range.begin);
  if (it != ends_.begin() && std::prev(it)->second >= range.begin) --it;
  while (it != ends_.end() && it->first <= merged.end) {
    merged.begin = std::min(merged.begin, it->first);
    merged.end = std::max(merged.end, it->second);
    it = ends_.erase(it);
  }
  ends_.emplace(merged.begin, merged.end);
}

void RangeSet::Remove(const ByteRange& range) {
  if (range.begin >= range.end) return;
  auto it = ends_.upper_bound(range.begin);
  if (it != ends_.begin() && std::prev(it)->second > range.begin) --it;
  while (it != ends_.end() && it->first < range.end) {
    const ByteRange old{it->first, it->second};
    it = ends_.erase(it);
    if (old.begin < range.begin) ends_.emplace(old.begin, range.begin);
    if (old.end > range.end) ends_.emplace(range.end, old.end);
  }
}

std::vector<ByteRange> RangeSet::MissingFrom(const ByteRange& range) const {
  std::vector<ByteRange> missing;
  size_t at = range.begin;
  auto it = ends_.upper_bound(range.begin);
  if (it != ends_.begin()) at = std::max(at, std::prev(it)->second);
  for (; at < range.end && it != ends_.end() && it->first < range.end; ++it) {
    if (it->first > at) missing.push_back({at, it->first});
    at = it->second;
  }
  if (at < range.end) missing.push_back({at, range.end});
  return missing;
}

bool RangeSet::Contains(const ByteRange& range) const {
  if (range.begin >= range.end) return true;
  const auto it = ends_.upper_bound(range.begin);
  return it != ends_.begin() && std::prev(it)->second >= range.end;
}

std::vector<ByteRange> RangeSet::ranges() const {
  std::vector<ByteRange> all;
  all.reserve(ends_.size());
  for (const auto& [begin, end] : ends_) all.push_back({begin, end});
  return all;
}

}  // namespace tcgemm
