// The results of a stream's panels: put in order, and made into messages without a copy of D.
#ifndef TCGEMM_SERVER_RPC_STREAM_RESULTS_H_
#define TCGEMM_SERVER_RPC_STREAM_RESULTS_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "server/engine/job.h"
#include "server/rpc/stream_plan.h"
#include "server/rpc/stream_wire.h"

namespace tcgemm {

// Not thread-safe.
class StreamResults {
 public:
  explicit StreamResults(const StreamPlan& plan);

  struct Result {
    PanelLayout layout;
    JobOutcome outcome;             // OK
    std::function<void()> on_gone;  // its lease is back in the pool; on any thread
  };
  // Panel `index` is computed. The messages that may leave now, in the order of D's bytes; their
  // slices hold the leases. None when D is resident.
  std::vector<grpc::ByteBuffer> Add(int64_t index, Result result);

  // Every panel was added.
  bool complete() const { return next_ == panels_; }
  // Of those added: the job's part, the kernel and its company.
  const StreamTimings& timings() const { return timings_; }

 private:
  void AddTimings(const GemmShape& shape, const JobOutcome& outcome);
  void MakeMessages(Result result, std::vector<grpc::ByteBuffer>& messages) const;

  const int64_t panels_;
  const GemmShape shape_;
  const size_t row_bytes_;  // of D in messages; 0: it is resident
  int64_t next_ = 0;
  std::map<int64_t, Result> early_;  // computed before one that leaves first
  StreamTimings timings_;
};

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_STREAM_RESULTS_H_
