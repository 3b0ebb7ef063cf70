// One HoldRegion call: a shared-memory region that lives as long as it.
//
//   admit ─► read the size ─► open (on the engine's region thread) ─► answer ─► hold ─► done
//
// Like MatmulCall it may end in every stage, by End() or Abandon(), the first of which decides;
// that takes the region away. It is not one of the calls that a drain waits for: they hold nothing
// but memory, and products that use it count themselves.
//
// Threads: as MatmulCall's. gRPC's operations are started by Pump() alone.
#ifndef TCGEMM_SERVER_RPC_REGION_CALL_H_
#define TCGEMM_SERVER_RPC_REGION_CALL_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>

#include "base/mutex.h"
#include "server/engine/shared_region_store.h"
#include "server/rpc/call_context.h"
#include "server/rpc/call_record.h"
#include "server/rpc/matmul_call.h"
#include "server/rpc/region_socket.h"

namespace tcgemm {

inline constexpr char kHoldRegionMethod[] = "HoldRegion";

class RegionCall final : public RawReactor,
                         public CallTimer::Target,
                         public HeldCalls::Target,
                         public std::enable_shared_from_this<RegionCall> {
 public:
  // The reactor of a call whose headers have arrived; it owns itself until OnDone. `context` must
  // outlive every call.
  static RawReactor* Start(CallContext* context, grpc::CallbackServerContext* grpc_context);
  ~RegionCall() override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void OnTime() override;
  void OnDrained() override;

 private:
  enum class State { kReading, kOpening, kAnswering, kHolding };
  enum class Op { kNone, kRead, kWrite, kFinish };
  enum class Retry { kNo, kYes };

  RegionCall(CallContext* context, grpc::CallbackServerContext* grpc_context);
  // gRPC hands a call from thread to thread in ways that ThreadSanitizer cannot see; this one it
  // can.
  void SeeStart() const ABSL_LOCKS_EXCLUDED(mutex_) { MutexLock lock(&mutex_); }
  void Admit();
  absl::Status CheckPlace() const;
  void Open();
  void OnOpen(absl::StatusOr<SharedRegionRef> region) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes the region over, and answers; false, and not taken, when the call has ended. Nobody here
  // may keep a reference: a client that closes its region may want the room at once.
  bool Keep(SharedRegionRef& region, const RegionToken& token) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nobody finds the region, nor gets its descriptor, any more.
  void GiveBack(SharedRegionRef region, const RegionToken& token);
  bool EnterState(State state) ABSL_LOCKS_EXCLUDED(mutex_);

  void End(absl::Status status, Retry retry = Retry::kNo,
           std::optional<RejectReason> rejected = std::nullopt) ABSL_LOCKS_EXCLUDED(mutex_);
  // End, by the client or by the clock.
  void Abandon(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  // False when it had ended before. The region, and what was to become one, is gone then.
  bool Close(absl::Status status, Retry retry) ABSL_LOCKS_EXCLUDED(mutex_);

  Op NextOp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Perform(Op op) ABSL_LOCKS_EXCLUDED(mutex_);
  void Pump() ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishWithStatus() ABSL_LOCKS_EXCLUDED(mutex_);
  TimePoint NextTime() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetTimer() ABSL_LOCKS_EXCLUDED(mutex_);

  CallContext* const context_;
  grpc::CallbackServerContext* const grpc_context_;  // until OnDone
  grpc_call* const grpc_call_;                       // a reference: may be cancelled at any time
  CallRecord record_;
  const TimePoint started_at_;
  const TimePoint deadline_;
  const std::optional<UnixPeer> peer_;  // none: not over a unix socket

  grpc::ByteBuffer request_;   // gRPC's while it reads
  grpc::ByteBuffer response_;  // gRPC's while it writes

  mutable Mutex mutex_;
  std::shared_ptr<RegionCall> self_ ABSL_GUARDED_BY(mutex_);  // until OnDone
  State state_ ABSL_GUARDED_BY(mutex_) = State::kReading;
  TimePoint state_since_ ABSL_GUARDED_BY(mutex_);
  SharedRegionStore::OpenId opening_ ABSL_GUARDED_BY(mutex_) = 0;
  SharedRegionRef region_ ABSL_GUARDED_BY(mutex_);
  RegionToken token_ ABSL_GUARDED_BY(mutex_) = {};
  CallTimer::Ticket ticket_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);  // set: the call has ended, and how
  Retry retry_ ABSL_GUARDED_BY(mutex_) = Retry::kNo;
  bool want_read_ ABSL_GUARDED_BY(mutex_) = false;
  bool want_write_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;  // the last operation was started
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_REGION_CALL_H_
