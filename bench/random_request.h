// The request of a benchmark.
#ifndef TCGEMM_BENCH_RANDOM_REQUEST_H_
#define TCGEMM_BENCH_RANDOM_REQUEST_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

namespace tcgemm {

// A serialized MatmulRequest: two bf16 matrices of size × size, dense and inline, the same random
// bits at every call, finite with |x| < 2. In one slice.
grpc::ByteBuffer MakeRandomRequest(int64_t size);

}  // namespace tcgemm

#endif  // TCGEMM_BENCH_RANDOM_REQUEST_H_
