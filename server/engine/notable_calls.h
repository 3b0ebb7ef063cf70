// The last calls that were slow and the last that failed, for somebody who asks what went wrong.
// Never a payload, never a secret.
#ifndef TCGEMM_SERVER_ENGINE_NOTABLE_CALLS_H_
#define TCGEMM_SERVER_ENGINE_NOTABLE_CALLS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kernels/gemm.h"
#include "server/engine/engine_events.h"

namespace tcgemm {

struct NotableCall {
  int64_t ended_unix_ms = 0;
  std::string method;
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string message;  // of the status; kept shortened, without control characters
  Nanos duration{0};
  std::string caller;  // its identity; kept like the message
  std::optional<GemmShape> shape;
  std::optional<std::array<Nanos, kStageCount>> stages;  // by Stage
  std::string trace_id;                                  // or empty
};

// Thread-safe.
class NotableCalls {
 public:
  static constexpr size_t kKept = 64;           // of each kind
  static constexpr size_t kMaxTextBytes = 240;  // of a message or an identity

  // Calls that took longer than `slow` are slow.
  explicit NotableCalls(Nanos slow) : slow_(slow) {}

  Nanos slow() const { return slow_; }
  // Whether such a call is kept: all others cost this comparison.
  bool Wants(absl::StatusCode code, Nanos duration) const {
    return code != absl::StatusCode::kOk || duration > slow_;
  }
  // In the place of the oldest of its kind: one whose code is not OK has failed, however long it
  // took; another one was slow.
  void Add(NotableCall call) ABSL_LOCKS_EXCLUDED(mutex_);

  struct Kind {
    uint64_t count = 0;                                     // since the start
    std::vector<std::shared_ptr<const NotableCall>> calls;  // those kept, newest first
  };
  struct Snapshot {
    Kind slow;
    Kind failed;
  };
  Snapshot Read() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // calls[count % kKept] is the next to be replaced.
  static Kind NewestFirst(const Kind& ring);

  const Nanos slow_;
  mutable Mutex mutex_;
  Kind slow_calls_ ABSL_GUARDED_BY(mutex_);
  Kind failed_calls_ ABSL_GUARDED_BY(mutex_);
};

// At most `bytes` of text, cut between characters of UTF-8 and then with "…" at its end; control
// characters become '?', so that a line stays a line.
std::string ShortLine(std::string_view text, size_t bytes);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_NOTABLE_CALLS_H_
