#include "server/engine/notable_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"

namespace tcgemm {

std::string ShortLine(std::string_view text, size_t bytes) {
  constexpr std::string_view kEllipsis = "…";
  std::string line(text);
  if (text.size() > bytes) {
    size_t end = bytes - std::min(bytes, kEllipsis.size());
    // 10xxxxxx goes on with a character that began before.
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    line.resize(end);
    line += kEllipsis;
  }
  std::replace_if(
      line.begin(), line.end(),
      [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); }, '?');
  return line;
}

void NotableCalls::Add(NotableCall call) {
  call.message = ShortLine(call.message, kMaxTextBytes);
  call.caller = ShortLine(call.caller, kMaxTextBytes);
  const bool failed = call.code != absl::StatusCode::kOk;
  // Made before the lock, and the one that it replaces goes after it.
  auto kept = std::make_shared<const NotableCall>(std::move(call));
  MutexLock lock(&mutex_);
  Kind& ring = failed ? failed_calls_ : slow_calls_;
  if (ring.calls.size() < kKept) ring.calls.emplace_back();
  ring.calls[ring.count % kKept].swap(kept);
  ++ring.count;
}

NotableCalls::Kind NotableCalls::NewestFirst(const Kind& ring) {
  Kind sorted{.count = ring.count};
  for (size_t i = 1; i <= ring.calls.size(); ++i) {
    sorted.calls.push_back(ring.calls[(ring.count - i) % kKept]);
  }
  return sorted;
}

NotableCalls::Snapshot NotableCalls::Read() const {
  MutexLock lock(&mutex_);
  return {.slow = NewestFirst(slow_calls_), .failed = NewestFirst(failed_calls_)};
}

}  // namespace tcgemm
