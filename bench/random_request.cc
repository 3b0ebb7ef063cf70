#include "bench/random_request.h"

#include <algorithm>
#include <random>
#include <string>

#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {

namespace {

void SetRandom(int64_t rows, int64_t cols, std::mt19937& random, v1::Operand& operand) {
  operand.set_rows(rows);
  operand.set_cols(cols);
  operand.set_dtype(v1::BF16);
  std::string& bytes = *operand.mutable_inline_();
  bytes.resize(static_cast<size_t>(2 * rows * cols));
  for (size_t i = 0; i < bytes.size(); i += 4) {
    // Without the top bit of the exponent: finite, |x| < 2, either sign.
    const uint32_t word = random() & 0xbfffbfff;
    std::copy_n(reinterpret_cast<const char*>(&word), std::min<size_t>(4, bytes.size() - i),
                &bytes[i]);
  }
}

grpc::ByteBuffer InOneSlice(const v1::MatmulRequest& request) {
  const grpc::Slice slice(request.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

grpc::ByteBuffer MakeRandomRequest(int64_t size) {
  v1::MatmulRequest request;
  std::mt19937 random(1);
  SetRandom(size, size, random, *request.mutable_a());
  SetRandom(size, size, random, *request.mutable_b());
  return InOneSlice(request);
}

grpc::ByteBuffer MakeRequestForResident(int64_t rows, int64_t cols, const std::string& handle) {
  v1::MatmulRequest request;
  std::mt19937 random(1);
  SetRandom(rows, cols, random, *request.mutable_a());
  request.mutable_b()->set_handle(handle);
  return InOneSlice(request);
}

}  // namespace tcgemm
