// The request of a benchmark.
#ifndef TCGEMM_BENCH_RANDOM_REQUEST_H_
#define TCGEMM_BENCH_RANDOM_REQUEST_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <string>

namespace tcgemm {

// A serialized MatmulRequest: two bf16 matrices of size × size, dense and inline, the same random
// bits at every call, finite with |x| < 2. In one slice.
grpc::ByteBuffer MakeRandomRequest(int64_t size);
// The same with an A of rows × cols alone; B is the matrix that the server has under `handle`.
grpc::ByteBuffer MakeRequestForResident(int64_t rows, int64_t cols, const std::string& handle);

}  // namespace tcgemm

#endif  // TCGEMM_BENCH_RANDOM_REQUEST_H_
