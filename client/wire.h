// The messages of a product on the wire, by hand: protobuf would copy every operand into a string
// first and refuse more than it can hold; here the operands stay where they are.
//
// Knows neither gRPC nor generated code: bytes in, bytes out. tests/client/wire_test.cc holds it
// against the protobuf library.
#ifndef TCGEMM_CLIENT_WIRE_H_
#define TCGEMM_CLIENT_WIRE_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "matrix/epilogue.h"
#include "matrix/matrix.h"
#include "matrix/matrix_view.h"

namespace tcgemm::client {

// gRPC writes a message's length in 32 bits and casts it to int in many places.
inline constexpr size_t kMaxMessageBytes = (size_t{1} << 31) - 1;

// One serialised MatmulRequest. Its pieces point into itself and into the caller's matrices, which
// must outlive it. Move-only.
class EncodedRequest {
 public:
  EncodedRequest() = default;
  EncodedRequest(EncodedRequest&&) = default;
  EncodedRequest& operator=(EncodedRequest&&) = default;

  // In order; their concatenation is the message.
  const std::vector<absl::string_view>& pieces() const { return pieces_; }
  size_t bytes() const { return bytes_; }

 private:
  friend absl::StatusOr<EncodedRequest> EncodeMatmulRequest(const MatrixView& a,
                                                            const MatrixView& b, DType output,
                                                            const Epilogue& epilogue, bool fastest);
  void AddHeader(std::string header);
  void AddOperand(const MatrixView& matrix);

  std::vector<std::string> headers_;
  std::vector<Matrix> gathered_;  // dense copies of rows that lay too far apart
  std::vector<absl::string_view> pieces_;
  size_t bytes_ = 0;
};

// A and B can be multiplied. INVALID_ARGUMENT, naming the operand and the limit, when they are not
// bf16 matrices that fit each other, or the output is neither bf16 nor fp32.
absl::Status CheckProduct(const MatrixView& a, const MatrixView& b, DType output);

// The bytes are those that the protobuf library would write. Rows that lie up to a quarter apart
// travel as stored, gaps included, without a copy; others are gathered. A C that is not read does
// not travel. `fastest`: CallOptions. INVALID_ARGUMENT, naming the operand and the limit, when the
// operands are not bf16 matrices that can be multiplied, the output is neither bf16 nor fp32, the
// epilogue is not one of D (ValidateEpilogue), or the message would exceed kMaxMessageBytes.
absl::StatusOr<EncodedRequest> EncodeMatmulRequest(const MatrixView& a, const MatrixView& b,
                                                   DType output, const Epilogue& epilogue = {},
                                                   bool fastest = false);

// The D that a response must hold.
struct ExpectedProduct {
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::kBf16;
};

// Walks the MatmulResponse whose concatenated bytes are `slices`, any cut; copies its d into `d`
// (reshaped; untouched on error). Fills the server's part of MatmulInfo. DATA_LOSS, saying what was
// expected, when it does not parse or is not the expected product.
absl::StatusOr<MatmulInfo> DecodeMatmulResponse(absl::Span<const absl::string_view> slices,
                                                const ExpectedProduct& expected, Matrix& d);

// grpc.health.v1 (no package ships its generated code). Decode: DATA_LOSS when it does not parse.
std::string EncodeHealthCheckRequest(absl::string_view service);
absl::StatusOr<Health> DecodeHealthCheckResponse(absl::Span<const absl::string_view> slices);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_WIRE_H_
