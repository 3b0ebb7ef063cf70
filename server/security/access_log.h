// One JSON line for each call: who, what, how long, how it ended. Never a payload, never a secret.
#ifndef TCGEMM_SERVER_SECURITY_ACCESS_LOG_H_
#define TCGEMM_SERVER_SECURITY_ACCESS_LOG_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "kernels/gemm.h"
#include "server/engine/caller.h"
#include "server/engine/engine_events.h"

namespace tcgemm {

enum class PeerKind { kUnix, kTcp, kTls };

struct AccessEntry {
  std::string_view method;
  absl::StatusCode code = absl::StatusCode::kOk;
  Nanos duration{0};
  Caller caller;
  PeerKind peer = PeerKind::kTcp;
  uint64_t bytes_in = 0;   // of request messages
  uint64_t bytes_out = 0;  // of response messages
  std::optional<GemmShape> shape;
  std::optional<std::array<Nanos, kStageCount>> stages;  // by Stage
  std::string trace_id;                                  // 32 hex digits of traceparent, or empty
};

// The line without its end: {"time": RFC 3339, "method", "code", "duration_ms", "caller", "peer",
// "bytes_in", "bytes_out"} and, where known, "m", "n", "k", "stages_ms": {...}, "trace_id".
// `unix_ms`: when the call ended.
std::string FormatAccess(const AccessEntry& entry, int64_t unix_ms);

// The trace id of a W3C traceparent header; empty when it is none.
std::string TraceIdOf(std::string_view traceparent);

// Thread-safe. A thread of its own writes: a slow disk delays no call.
class AccessLog {
 public:
  static constexpr size_t kMaxWaitingLines = 1 << 16;

  // "-" is stdout, any other a file that lines are added to. NOT_FOUND, PERMISSION_DENIED or
  // INVALID_ARGUMENT, naming --access-log and the file.
  static absl::StatusOr<std::unique_ptr<AccessLog>> Open(const std::string& path);
  // Writes what waits.
  ~AccessLog();
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  // Never waits: beyond kMaxWaitingLines lines are dropped and counted, and the next line written
  // is {"dropped": N}.
  void Write(const AccessEntry& entry) ABSL_LOCKS_EXCLUDED(mutex_);
  // Opens the file of that name again, for logrotate; the errors of Open, and the old one stays.
  absl::Status Reopen() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  AccessLog(std::string path, int fd);
  void Loop();

  const std::string path_;
  Mutex mutex_;
  CondVar changed_;
  int fd_ ABSL_GUARDED_BY(mutex_);
  int next_fd_ ABSL_GUARDED_BY(mutex_) = -1;  // takes the place of fd_
  std::deque<std::string> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_SECURITY_ACCESS_LOG_H_
