// Which of many things are due, without looking at those that are not.
//
// A thing's owner looks at it again when TakeDue names it, and adds it anew if it is not over: what
// may become due later than planned need not be moved each time its plan changes.
#ifndef TCGEMM_SERVER_ENGINE_DUE_ORDER_H_
#define TCGEMM_SERVER_ENGINE_DUE_ORDER_H_

#include <cstdint>
#include <map>
#include <optional>

#include "base/clock.h"

namespace tcgemm {

// Not thread-safe. Add, Remove and TakeDue take logarithmic time. A Ticket is valid until it was
// removed, or TakeDue gave its thing out.
template <typename Thing>
class DueOrder {
 public:
  using Ticket = typename std::multimap<TimePoint, Thing>::iterator;

  Ticket Add(TimePoint due, Thing thing) { return things_.emplace(due, thing); }
  void Remove(Ticket ticket) { things_.erase(ticket); }

  // The first one that is due at `now`, which leaves the order; none when nothing is.
  std::optional<Thing> TakeDue(TimePoint now) {
    const Ticket first = things_.begin();
    if (first == things_.end()) return std::nullopt;
    ++looks_;
    if (first->first > now) return std::nullopt;
    const Thing thing = first->second;
    things_.erase(first);
    return thing;
  }

  size_t size() const { return things_.size(); }
  // How many things TakeDue has looked at so far.
  int64_t looks() const { return looks_; }

 private:
  std::multimap<TimePoint, Thing> things_;
  int64_t looks_ = 0;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_DUE_ORDER_H_
