// What all calls of the client share: a deadline, and how an attempt ended.
#ifndef TCGEMM_CLIENT_CALL_H_
#define TCGEMM_CLIENT_CALL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "client/client.h"
#include "client/retry.h"

namespace tcgemm::client {

// `left` from now; however long that is.
TimePoint DeadlineIn(Nanos left);
void SetDeadline(TimePoint deadline, grpc::ClientContext& context);

// How a call ended that `context` and `channel` were used for.
Attempt AttemptOf(const grpc::Status& status, const grpc::ClientContext& context,
                  grpc::Channel& channel);

// CallWithRetries with the real clock; each failure is the last one when options.retry is false.
// INVALID_ARGUMENT, with no attempt made, without a timeout.
RetryOutcome CallWithin(const CallOptions& options,
                        const std::function<Attempt(TimePoint deadline)>& attempt);

// A number that differs from call to call and from process to process; not a secret.
uint64_t NewSeed();
// 32 hex digits that nobody else chooses, by chance or on purpose.
std::string RandomHex();

// The bytes of a buffer, where they lie: `slices` keep them there.
absl::Status Dump(const grpc::ByteBuffer& buffer, std::vector<grpc::Slice>& slices,
                  std::vector<absl::string_view>& pieces);

// Calls that end together. Thread-safe.
class CallGroup {
 public:
  // Every call that is under way ends with CANCELLED, and so does each that starts later.
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);
  bool cancelled() const ABSL_LOCKS_EXCLUDED(mutex_);

  // A context that belongs to the group as long as this lives.
  class Context {
   public:
    // `group` may be null: then the call stands alone.
    Context(CallGroup* group, TimePoint deadline);
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    grpc::ClientContext& operator*() { return context_; }
    grpc::ClientContext* operator->() { return &context_; }

   private:
    CallGroup* const group_;
    grpc::ClientContext context_;
  };

 private:
  mutable Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CALL_H_
