// One stream that uploads to a resident matrix, and one that downloads from it: an attempt each.
//
// The bytes of an upload are copied into gRPC's memory while their CRC is taken, which costs no
// more than the CRC: gRPC may hold them beyond the end of an abandoned call (client.cc says why),
// and the caller's matrix must not have to wait for that.
#ifndef TCGEMM_CLIENT_MATRIX_STREAMS_H_
#define TCGEMM_CLIENT_MATRIX_STREAMS_H_

#include <grpcpp/channel.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "client/call.h"
#include "client/range.h"
#include "client/retry.h"
#include "matrix/matrix_view.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm::client {

// Copies bytes `range` of the dense matrix (any ld) to `to`; their CRC32C.
uint32_t Gather(const MatrixView& matrix, const Range& range, char* to);

// Where a stream goes, and what may end it.
struct StreamPath {
  std::shared_ptr<grpc::Channel> channel;
  CallGroup* group = nullptr;  // null: it stands alone
  TimePoint deadline;
};

struct UploadAnswer {
  std::string handle;
  uint64_t generation = 0;  // 0: from a server that knows none
  std::vector<Range> present;
  bool complete = false;
};

struct UploadOutcome {
  Attempt attempt;
  UploadAnswer answer;  // when the attempt succeeded
};

// Sends `header`, then pieces of `matrix` (bf16, any ld) that `queue` gives out until it has no
// more. After a failure nobody knows which of the pieces that it took are there. `queue` may be
// null: then the header alone.
UploadOutcome SendRanges(const StreamPath& path, const v1::UploadMatrixRequest::Header& header,
                         const MatrixView& matrix, RangeQueue* queue);

struct DownloadRequest {
  std::string handle;
  // All of it from range.begin on when range.end is 0.
  Range range;
  // Of the matrix; another one is ABORTED, as its bytes do not go with those that came before. 0:
  // whatever it is.
  uint64_t generation = 0;
  // Says where the dense matrix lies that the bytes go to, once it is known which one comes.
  std::function<absl::StatusOr<char*>(const v1::MatrixInfo&)> place;
};

struct DownloadOutcome {
  Attempt attempt;
  Range left;               // what did not come; its end is 0 while nobody knows it
  uint64_t generation = 0;  // of the matrix they came from, if any came
};

// DATA_LOSS when a chunk is not the next one, or does not have its CRC.
DownloadOutcome ReceiveRange(const StreamPath& path, const DownloadRequest& request);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_MATRIX_STREAMS_H_
