// Several connections to one server, and matrices that go over all of them at once.
//
// Over one connection gRPC moves a matrix with one thread at each end. Over N of them N threads cut
// it up, take CRCs and copy. Which ranges arrived is the server's to say, so a round that broke is
// followed by another one for the rest.
#ifndef TCGEMM_CLIENT_LANES_H_
#define TCGEMM_CLIENT_LANES_H_

#include <grpcpp/channel.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/mutex.h"
#include "client/client.h"
#include "client/matrix_streams.h"
#include "client/range.h"
#include "client/retry.h"
#include "matrix/matrix_view.h"

namespace tcgemm::client {

// Of one matrix that is being uploaded.
struct Filling {
  MatrixView matrix;  // bf16, any ld
  std::string handle;
  uint64_t generation = 0;
  std::vector<Range> missing;
  bool complete = false;  // the server has said so
};

// Of one matrix that is being downloaded.
struct Fetching {
  std::string handle;
  uint64_t generation = 0;  // 0: not known yet
  std::vector<Range> missing;
  // As DownloadRequest's; called from several threads at once.
  std::function<absl::StatusOr<char*>(const v1::MatrixInfo&)> place;
};

// Thread-safe.
class Lanes {
 public:
  // A lane takes so much at once. Measured: docs/adr/0016.
  static constexpr size_t kPieceBytes = size_t{1} << 20;
  static constexpr int kMost = 8;

  // `first` is the connection of lane 0; each other lane gets its own when it is first used.
  // `options` as MakeChannel takes them.
  Lanes(ClientOptions options, std::shared_ptr<grpc::Channel> first);

  const std::shared_ptr<grpc::Channel>& first() const { return first_; }

  // One round over at most `lanes` connections (1 to kMost): sends what is missing of all fillings
  // together, and sets `complete` where the server says so; `missing` is as it was. A lane that
  // breaks leaves what is left to the others; the round ends with its failure, unless everything is
  // there all the same. A failure that a retry cannot mend ends all lanes.
  Attempt Fill(absl::Span<Filling> fillings, int lanes, TimePoint deadline);
  // The same for what is missing of a download, which becomes what is still missing.
  Attempt Fetch(Fetching& fetching, int lanes, TimePoint deadline);

 private:
  absl::StatusOr<std::shared_ptr<grpc::Channel>> Connection(int lane) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs a round's work on each lane, lane 0 on this thread, until all have returned.
  Attempt Run(int lanes, TimePoint deadline,
              const std::function<Attempt(int lane, const StreamPath& path)>& work)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> first_;
  Mutex mutex_;
  std::vector<std::shared_ptr<grpc::Channel>> others_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_LANES_H_
