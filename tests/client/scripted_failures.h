// Which calls of a server in the test's process fail, and how.
#ifndef TCGEMM_TESTS_CLIENT_SCRIPTED_FAILURES_H_
#define TCGEMM_TESTS_CLIENT_SCRIPTED_FAILURES_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace tcgemm::client {

enum class MatrixMethod { kUpload, kDownload, kList, kDelete, kMatmul };

struct MatrixFailure {
  MatrixMethod method = MatrixMethod::kUpload;
  int skip = 0;   // so many calls of the method before it pass
  int count = 1;  // so many calls fail
  grpc::StatusCode code = grpc::StatusCode::UNAVAILABLE;
  // The call is executed, and its answer lost.
  bool after = false;
  // Of an upload or a download: it fails where so many bytes of it would have passed, and the range
  // that ends there or beyond is not taken.
  size_t bytes = 0;
  std::string pushback_ms;  // empty: none
};

// What a call that fails ends with.
inline grpc::Status FailedStatus(const MatrixFailure& failure, grpc::ServerContext* context) {
  if (!failure.pushback_ms.empty()) {
    context->AddTrailingMetadata("grpc-retry-pushback-ms", failure.pushback_ms);
  }
  return grpc::Status(failure.code, "told to fail");
}

// Counts calls too. Thread-safe.
class ScriptedFailures {
 public:
  void Add(const MatrixFailure& failure) {
    MutexLock lock(&mutex_);
    failures_.push_back(failure);
  }
  // The failure that this call is to have.
  std::optional<MatrixFailure> Begin(MatrixMethod method, grpc::ServerContext* context) {
    MutexLock lock(&mutex_);
    ++counts_[method];
    peers_.insert(context->peer());
    for (MatrixFailure& failure : failures_) {
      if (failure.method != method || failure.count == 0) continue;
      if (failure.skip-- > 0) continue;
      --failure.count;
      return failure;
    }
    return std::nullopt;
  }
  int calls(MatrixMethod method) {
    MutexLock lock(&mutex_);
    return counts_[method];
  }
  int peers() {
    MutexLock lock(&mutex_);
    return static_cast<int>(peers_.size());
  }

 private:
  Mutex mutex_;
  std::vector<MatrixFailure> failures_ ABSL_GUARDED_BY(mutex_);
  std::map<MatrixMethod, int> counts_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> peers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tcgemm::client

#endif  // TCGEMM_TESTS_CLIENT_SCRIPTED_FAILURES_H_
