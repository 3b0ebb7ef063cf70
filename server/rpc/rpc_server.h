// The gRPC front: sockets, services, health, and the calls' way into the engine.
//
// Threads: every method may be called from any thread. Handlers run on gRPC's callback threads;
// copies of 256 KiB and more on a decode pool.
#ifndef TCGEMM_SERVER_RPC_RPC_SERVER_H_
#define TCGEMM_SERVER_RPC_RPC_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/engine/engine.h"
#include "server/engine/engine_events.h"
#include "server/engine/notable_calls.h"
#include "server/security/access_log.h"
#include "server/security/caller_shares.h"
#include "server/security/certificate_store.h"
#include "server/security/tokens.h"

namespace tcgemm {

struct RpcOptions {
  // "HOST:PORT" (port 0: any) or "unix:/path".
  std::vector<std::string> listen;
  // Largest request message.
  int64_t max_message_bytes = (int64_t{256} << 20) + (int64_t{64} << 10);
  // Payload bytes in gRPC's hands at once. A call reserves max_message_bytes of it before its
  // payload is read (its size is not known earlier) and gives them back once decoded; so at least
  // one message must fit.
  int64_t receive_bytes = int64_t{1} << 30;
  // Started and unfinished calls of Matmul, MatmulStream and on resident matrices; one more is
  // refused at once.
  int max_inflight = 1024;
  // How long a call may wait for its share of receive_bytes before it is refused.
  Nanos admission_wait = std::chrono::milliseconds(250);
  // A payload that has not arrived, or a result that was not taken, by then ends its call.
  Nanos receive_timeout = std::chrono::seconds(30);
  Nanos send_timeout = std::chrono::seconds(30);
  // The same when other calls wait for the room that it takes.
  Nanos contended_timeout = std::chrono::seconds(10);
  int decode_threads = 2;
  bool reflection = true;
  // What TCP listeners show; null: they have no TLS. Outlives the server. Unix sockets need none.
  const CertificateStore* certificates = nullptr;
  // Calls need a token of it, unless they come with a certificate or over a unix socket; null: they
  // need none. Outlives the server.
  const TokenFile* tokens = nullptr;
  CallerLimits caller_limits;
  // Null: no line for each call. Outlives the server.
  AccessLog* access_log = nullptr;
  // Where slow and failed calls are kept; null: nowhere. Outlives the server.
  NotableCalls* notable_calls = nullptr;
  // After so long (and up to a tenth more or less) a connection takes no new calls and closes when
  // its last one has ended, or after the grace, which then cuts it off; 0: never.
  Nanos max_connection_age{0};
  Nanos max_connection_age_grace{0};
  int max_concurrent_streams = 4096;  // of a connection
  // A connection that has not sent the preface and SETTINGS of HTTP/2 by then is closed.
  Nanos handshake_timeout = std::chrono::seconds(10);
  // Told, now and then, of connections that are refused, and why. Any thread; may be empty.
  std::function<void(const std::string& line)> log_warning;
  // For GetServerInfo.
  std::string version;
  std::string commit;
  std::string cuda;
  std::vector<std::string> kernels;  // names, best first
};

// Of Matmul, MatmulStream and calls on resident matrices.
struct CallTotals {
  int64_t started = 0;    // their headers arrived
  int64_t admitted = 0;   // of those: let in, to have their payload read
  int64_t completed = 0;  // of the admitted: ended with OK
  int64_t failed = 0;     // of the admitted: ended otherwise
};

class RpcServer {
 public:
  // Binds every address and serves; health says NOT_SERVING until SetServing(true).
  // ALREADY_EXISTS when an address is taken (a busy port, a live unix socket), INVALID_ARGUMENT
  // when it does not parse, PERMISSION_DENIED or NOT_FOUND as the system says: one line, naming the
  // address. `engine`, `clock` and `events` must outlive the server.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const RpcOptions& options, Engine* engine,
                                                          const Clock* clock, CallEvents* events);
  // Shutdown(), then waits for the jobs of calls that were cut off: they end in the engine.
  virtual ~RpcServer() = default;

  // As given, with real ports, in the order of RpcOptions::listen.
  virtual const std::vector<std::string>& addresses() const = 0;

  // What health's Check and Watch answer for "" and "tcgemm.v1.MatmulService".
  virtual void SetServing(bool serving) = 0;
  // From now on new calls are refused with UNAVAILABLE. Idempotent.
  virtual void RefuseNewCalls() = 0;
  // Waits until every admitted call has ended, at most until `deadline`; true if so. HoldRegion
  // calls, which end when their clients want, are not waited for.
  virtual bool WaitIdle(TimePoint deadline) = 0;
  // Ends HoldRegion calls with UNAVAILABLE, and refuses new ones: once no admitted call may need a
  // region. Idempotent.
  virtual void EndHeldCalls() = 0;
  // Ends open calls (health watches too) and closes the sockets. Blocks until all callbacks ran.
  virtual void Shutdown() = 0;

  virtual CallTotals totals() const = 0;

  // Of calls that begin from now on.
  virtual void SetCallerLimits(const CallerLimits& limits) = 0;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_RPC_SERVER_H_
