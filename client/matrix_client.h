// Matrices that stay on the server: up, down, listed, deleted and multiplied.
//
// Threads: a MatrixClient may be used from several threads at once. Blocking calls. Errors are the
// server's; INVALID_ARGUMENT without a timeout, before anything is sent; DATA_LOSS when an answer
// is not what was asked for.
//
// Retries: as a Client's (CallOptions). Each call may be repeated without harm: uploads go on with
// the ranges that the server lacks, downloads with the bytes that did not come, and never with
// another matrix that got the name meanwhile (ABORTED or NOT_FOUND then; an older server tells no
// generations, and would not be found out). Two things cannot be told apart when an answer is lost:
// a result that was kept under a name is ALREADY_EXISTS for the next attempt, and one without a
// name may stay on the server under a handle that nobody knows, until its room is needed.
#ifndef TCGEMM_CLIENT_MATRIX_CLIENT_H_
#define TCGEMM_CLIENT_MATRIX_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "client/client.h"
#include "matrix/activation.h"
#include "matrix/matrix.h"
#include "matrix/matrix_view.h"

namespace tcgemm::client {

struct UploadOptions {
  std::string name;  // empty: the server makes a random handle
  Nanos ttl{0};      // whole seconds; 0: it stays
};

struct StoredMatrix {
  std::string handle;
  std::string name;
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::kBf16;
  int64_t bytes = 0;
  bool preloaded = false;
  bool complete = false;
};

// An operand: a resident matrix, or one that travels with the request.
struct Factor {
  std::string handle;       // empty: `view` is sent
  MatrixView view;          // bf16 (C and bias also fp32), any ld
  bool transposed = false;  // of a handle; a view says so itself
};

// As matrix/epilogue.h, with operands that may be resident: those that are given.
struct FactorEpilogue {
  float alpha = 1;
  float beta = 0;
  std::optional<Factor> c;
  std::optional<Factor> bias;
  Activation activation = Activation::kNone;
};

struct Product {
  MatmulInfo info;
  std::string handle;  // of D, if it was kept
  int64_t rows = 0;
  int64_t cols = 0;
};

class MatrixClient {
 public:
  // Does not connect yet. INVALID_ARGUMENT when options.server does not parse, or for no number of
  // lanes.
  static absl::StatusOr<std::unique_ptr<MatrixClient>> Create(const ClientOptions& options);
  virtual ~MatrixClient() = default;

  // A bf16 view of any ld, over options.lanes connections. Its handle. ALREADY_EXISTS when somebody
  // else made a matrix of that name. After a failure a named one stays as far as it came, for
  // Resume; one without a name is deleted, which may take two seconds beyond the timeout.
  virtual absl::StatusOr<std::string> Upload(const MatrixView& matrix, const UploadOptions& upload,
                                             const CallOptions& options) = 0;
  // Asks which ranges of the matrix are there and sends the others.
  virtual absl::Status Resume(const std::string& handle, const MatrixView& matrix,
                              const CallOptions& options) = 0;
  // `matrix` is reshaped. DATA_LOSS also when a chunk's CRC is wrong. Over options.lanes
  // connections.
  virtual absl::Status Download(const std::string& handle, Matrix& matrix,
                                const CallOptions& options) = 0;
  // All of them, page by page. What comes or goes meanwhile may be missing or be there.
  virtual absl::StatusOr<std::vector<StoredMatrix>> List(const CallOptions& options) = 0;
  // OK also when an attempt deleted it whose answer was lost.
  virtual absl::Status Delete(const std::string& handle, const CallOptions& options) = 0;
  // D = op(A)·op(B). With `keep` D stays on the server, under `keep_name` or a random handle, and
  // `d` is untouched; otherwise `d` is reshaped and filled.
  absl::StatusOr<Product> Multiply(const Factor& a, const Factor& b, DType output, bool keep,
                                   const std::string& keep_name, Matrix& d,
                                   const CallOptions& options) {
    return MultiplyWith({}, a, b, output, keep, keep_name, d, options);
  }
  // D = act(alpha·op(A)·op(B) + beta·C + bias).
  virtual absl::StatusOr<Product> MultiplyWith(const FactorEpilogue& epilogue, const Factor& a,
                                               const Factor& b, DType output, bool keep,
                                               const std::string& keep_name, Matrix& d,
                                               const CallOptions& options) = 0;
};

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_MATRIX_CLIENT_H_
