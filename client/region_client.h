// Products in shared memory: regions over one connection, and calls whose matrices lie in them.
//
// Threads: a RegionClient may be used from several threads at once. Blocking calls, each tried
// once. Errors are the server's; INVALID_ARGUMENT without a timeout, before anything is sent;
// DATA_LOSS when an answer is not what was asked for.
#ifndef TCGEMM_CLIENT_REGION_CLIENT_H_
#define TCGEMM_CLIENT_REGION_CLIENT_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/matrix_client.h"
#include "client/shared_region.h"
#include "matrix/matrix_view.h"

namespace tcgemm::client {

class RegionClient {
 public:
  // Does not connect yet. INVALID_ARGUMENT when options.server is no "unix:/path".
  static absl::StatusOr<std::unique_ptr<RegionClient>> Create(const ClientOptions& options);
  virtual ~RegionClient() = default;

  // SharedRegion::Open's errors. The region may outlive the client.
  virtual absl::StatusOr<std::unique_ptr<SharedRegion>> Open(size_t bytes,
                                                             const CallOptions& options) = 0;

  // D = op(A)·op(B), written by the server into `d`, which lies in `region`, is dense and has the
  // product's shape. An operand is a handle, a bf16 view that lies in `region`, of which no byte is
  // sent, or one that does not, of which every byte is; one that lies partly in it is
  // INVALID_ARGUMENT. What is in `region` must not change meanwhile; D must not overlap A or B.
  // When handles hide the shape and it is not d's, the server has written beyond `d`: DATA_LOSS
  // then says so. UNAVAILABLE when the server no longer holds the region.
  absl::StatusOr<MatmulInfo> Multiply(const SharedRegion& region, const Factor& a, const Factor& b,
                                      const MutableMatrixView& d, const CallOptions& options) {
    return MultiplyWith({}, region, a, b, d, options);
  }
  // D = act(alpha·op(A)·op(B) + beta·C + bias). C and the bias are handles or views, bf16 or fp32,
  // of which every byte is sent, wherever they lie.
  virtual absl::StatusOr<MatmulInfo> MultiplyWith(const FactorEpilogue& epilogue,
                                                  const SharedRegion& region, const Factor& a,
                                                  const Factor& b, const MutableMatrixView& d,
                                                  const CallOptions& options) = 0;
};

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_REGION_CLIENT_H_
