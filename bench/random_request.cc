#include "bench/random_request.h"

#include <algorithm>
#include <random>
#include <string>

#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {

grpc::ByteBuffer MakeRandomRequest(int64_t size) {
  v1::MatmulRequest request;
  std::mt19937 random(1);
  for (v1::Operand* operand : {request.mutable_a(), request.mutable_b()}) {
    operand->set_rows(size);
    operand->set_cols(size);
    operand->set_dtype(v1::BF16);
    std::string& bytes = *operand->mutable_inline_();
    bytes.resize(static_cast<size_t>(2 * size * size));
    for (size_t i = 0; i < bytes.size(); i += 4) {
      // Without the top bit of the exponent: finite, |x| < 2, either sign.
      const uint32_t word = random() & 0xbfffbfff;
      std::copy_n(reinterpret_cast<const char*>(&word), std::min<size_t>(4, bytes.size() - i),
                  &bytes[i]);
    }
  }
  const grpc::Slice slice(request.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace tcgemm
