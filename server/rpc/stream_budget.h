// How much pinned memory all MatmulStream calls together may have.
//
// A stream takes its share before its first byte, for as many panels as it may hold at once. So its
// panels wait for nothing but their own way through the server and for calls of Matmul, which hold
// no more than they need to end; streams cannot wait for each other.
#ifndef TCGEMM_SERVER_RPC_STREAM_BUDGET_H_
#define TCGEMM_SERVER_RPC_STREAM_BUDGET_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "base/mutex.h"

namespace tcgemm {

// Thread-safe.
class StreamBudget {
 public:
  // Returned when it is destroyed or reset; must not outlive the budget. Move-only.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept;
    ~Share() { Reset(); }
    void Reset();

   private:
    friend class StreamBudget;
    Share(StreamBudget* budget, size_t bytes) : budget_(budget), bytes_(bytes) {}
    StreamBudget* budget_ = nullptr;
    size_t bytes_ = 0;
  };

  explicit StreamBudget(size_t bytes) : bytes_(bytes) {}

  // What one stream may take.
  size_t bytes() const { return bytes_; }
  // RESOURCE_EXHAUSTED, with the value and the limit, when other streams have too much of it now.
  absl::StatusOr<Share> Take(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Return(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  const size_t bytes_;
  Mutex mutex_;
  int streams_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t used_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_STREAM_BUDGET_H_
