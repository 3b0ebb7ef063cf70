// One product over several connections: A and B go up as temporary resident matrices, the product
// runs on their handles, D comes down, and nothing stays.
#ifndef TCGEMM_CLIENT_LANE_PRODUCT_H_
#define TCGEMM_CLIENT_LANE_PRODUCT_H_

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/lanes.h"
#include "matrix/matrix.h"
#include "matrix/matrix_view.h"

namespace tcgemm::client {

struct LaneProductArgs {
  MatrixView a;  // as Client::Matmul's
  MatrixView b;
  DType output = DType::kBf16;
  int lanes = 2;  // 1 to Lanes::kMost
  // A server that is full is waited for, as its pushback says. Else its first refusal is the last.
  bool patient = true;
};

// D into `d`, which is reshaped; the same bits as Client::Matmul gives. info.round_trip is of all
// of it, retries included. Within options.timeout every broken connection is made good: what is
// there already is not sent again. The temporary matrices are deleted whatever happens, which may
// take up to 750 ms beyond the timeout; those of a process that was killed leave the server by
// themselves a minute after the timeout. Errors: Client::Matmul's, and those of uploads:
// RESOURCE_EXHAUSTED when A, B and D do not fit what the server keeps resident, UNIMPLEMENTED when
// it keeps nothing.
absl::StatusOr<MatmulInfo> MultiplyOverLanes(Lanes& connections, const LaneProductArgs& args,
                                             Matrix& d, const CallOptions& options);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_LANE_PRODUCT_H_
