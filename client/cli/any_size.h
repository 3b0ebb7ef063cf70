// A product in one message where that is possible, and in a stream where it is not.
#ifndef TCGEMM_CLIENT_CLI_ANY_SIZE_H_
#define TCGEMM_CLIENT_CLI_ANY_SIZE_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "matrix/epilogue.h"
#include "matrix/matrix.h"
#include "matrix/matrix_view.h"

namespace tcgemm::client {

struct ProductViews {
  MatrixView a;
  MatrixView b;
  DType output = DType::kBf16;
  Epilogue epilogue;
};

// Whether request or response is more than a message may hold, or A, B and D together more than
// the server takes of one request. `server` may be a default one: then gRPC's limits alone count.
bool NeedsStream(const ProductViews& product, const ServerInfo& server);

struct AnySizeInfo {
  MatmulInfo info;
  bool streamed = false;
};

// Asks the server for its limits where the product is large enough for them to matter, and streams
// what it refuses for its size. `stream`: streams whatever the size. Beside a stream nothing of a C
// or a bias travels: UNIMPLEMENTED with `stream`, else the refusal of one message. Other errors are
// those of Client::MatmulWith and StreamClient::Multiply.
absl::StatusOr<AnySizeInfo> MultiplyAnySize(Client& client, const ClientOptions& server,
                                            const ProductViews& product, bool stream, Matrix& d,
                                            const CallOptions& options);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_ANY_SIZE_H_
