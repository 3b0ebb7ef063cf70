// Which bytes of something are there: a set of half-open ranges, kept as few as possible.
#ifndef TCGEMM_SERVER_ENGINE_RANGE_SET_H_
#define TCGEMM_SERVER_ENGINE_RANGE_SET_H_

#include <cstddef>
#include <map>
#include <vector>

namespace tcgemm {

// [begin, end), in bytes.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;

  size_t size() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

// Not thread-safe. Ranges that touch become one.
class RangeSet {
 public:
  // An empty range changes nothing. So it is for Remove.
  void Add(const ByteRange& range);
  void Remove(const ByteRange& range);
  // The parts of `range` that are not in the set, in order.
  std::vector<ByteRange> MissingFrom(const ByteRange& range) const;
  bool Contains(const ByteRange& range) const;  // in logarithmic time
  // In order; no two touch.
  std::vector<ByteRange> ranges() const;
  size_t count() const { return ends_.size(); }

 private:
  std::map<size_t, size_t> ends_;  // begin → end
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_RANGE_SET_H_
