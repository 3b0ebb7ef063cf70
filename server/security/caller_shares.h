// How much of the server one caller may use at once.
#ifndef TCGEMM_SERVER_SECURITY_CALLER_SHARES_H_
#define TCGEMM_SERVER_SECURITY_CALLER_SHARES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/engine/caller.h"

namespace tcgemm {

// 0: no limit.
struct CallerLimits {
  int max_inflight = 0;      // --max-inflight-per-caller: calls that wait for an answer
  uint64_t queue_bytes = 0;  // --queue-bytes-per-caller: operands and results of those

  bool operator==(const CallerLimits&) const = default;
};

// What each caller has under way. Thread-safe.
class CallerShares {
 public:
  // One call's; given back when it is destroyed or reset. Not thread-safe; move-only; must not
  // outlive the shares.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept;
    ~Share() { Reset(); }
    void Reset();
    // RESOURCE_EXHAUSTED, naming value, limit and flag, when the caller's calls would hold more
    // than their limit. OK, and not counted, without a share.
    absl::Status AddBytes(size_t bytes);
    // The answer is on its way: whoever reads it may call again before this call has ended here, so
    // it is no longer one of those in flight, unless kMostAnswered of the caller's (or its limit,
    // if that is more) are only answered: somebody does not read. Idempotent.
    void NoteAnswer();

   private:
    friend class CallerShares;
    CallerShares* shares_ = nullptr;
    std::string identity_;
    size_t bytes_ = 0;
    bool answered_ = false;
  };

  static constexpr int kMostAnswered = 64;

  explicit CallerShares(const CallerLimits& limits) : limits_(limits) {}

  // From the next call on.
  void SetLimits(const CallerLimits& limits) ABSL_LOCKS_EXCLUDED(mutex_);
  // RESOURCE_EXHAUSTED, naming the limit, when the caller has as many calls or bytes under way as
  // it may.
  absl::StatusOr<Share> Start(const Caller& caller) ABSL_LOCKS_EXCLUDED(mutex_);
  // A call that needs so many bytes could never be let in.
  bool IsBeyondLimit(size_t bytes) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Those with calls under way.
  size_t callers() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Usage {
    int calls = 0;
    int answered = 0;  // of those
    size_t bytes = 0;
  };
  absl::Status AddBytes(const std::string& identity, size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void NoteAnswer(const std::string& identity) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(const Share& share) ABSL_LOCKS_EXCLUDED(mutex_);

  mutable Mutex mutex_;
  CallerLimits limits_ ABSL_GUARDED_BY(mutex_);
  std::unordered_map<std::string, Usage> usage_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_SECURITY_CALLER_SHARES_H_
