// Products of any size: operands and D travel in panels (MatmulStream), so that no message, file or
// matrix has to fit 2 GiB, and D comes back while A is still going out.
//
// Threads: a StreamClient may be used from several threads at once. Blocking calls; each sends from
// a thread of its own.
#ifndef TCGEMM_CLIENT_STREAM_CLIENT_H_
#define TCGEMM_CLIENT_STREAM_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/matrix_client.h"
#include "matrix/matrix.h"
#include "matrix/matrix_view.h"

namespace tcgemm::client {

// A resident matrix, or one whose bytes are asked for as they are sent.
struct StreamedOperand {
  std::string handle;  // empty: the rest says it
  int64_t rows = 0;    // as stored
  int64_t cols = 0;
  bool transposed = false;  // of a handle too
  // Fills `to` with the bytes from `offset` on of the dense row-major bf16 matrix. In order, each
  // byte once; from the sending thread. An error ends the call with it.
  std::function<absl::Status(size_t offset, absl::Span<char> to)> read;
};

// A bf16 view of any ld, which must outlive the call.
StreamedOperand StreamView(const MatrixView& view);

// Where D goes; on the calling thread. An error ends the call with it.
struct StreamedResult {
  // Once, before the first byte; not when D stays on the server.
  std::function<absl::Status(int64_t rows, int64_t cols)> open;
  // The next bytes of the dense row-major D. They are right when Multiply says so, and not before.
  std::function<absl::Status(size_t offset, absl::string_view bytes)> write;
};

// Reshapes `d`, which must outlive the call, to the result.
StreamedResult StreamInto(Matrix* d, DType output);

struct StreamedProduct {
  StreamedOperand a;
  StreamedOperand b;
  FactorEpilogue epilogue;  // its C and bias are handles
  DType output = DType::kBf16;
  bool keep = false;      // D stays on the server …
  std::string keep_name;  // … under this name; empty: a random handle
  // Of operands in one message, 1 to 4 MiB (the server's limit).
  size_t panel_bytes = size_t{1} << 20;
};

class StreamClient {
 public:
  // Does not connect yet. INVALID_ARGUMENT when options.server does not parse.
  static absl::StatusOr<std::unique_ptr<StreamClient>> Create(const ClientOptions& options);
  virtual ~StreamClient() = default;

  // D = act(alpha·op(A)·op(B) + beta·C + bias), with the bits that Client::MatmulWith gets. No
  // operand's byte is sent before the server has accepted the header; a refusal until then is
  // retried as Client's are, nothing after. The server's status; INVALID_ARGUMENT without a timeout
  // or for a product that is none, before anything is sent; DATA_LOSS when what comes back is not
  // the product, in order, with right CRCs.
  virtual absl::StatusOr<Product> Multiply(const StreamedProduct& product,
                                           const StreamedResult& result,
                                           const CallOptions& options) = 0;
};

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_STREAM_CLIENT_H_
