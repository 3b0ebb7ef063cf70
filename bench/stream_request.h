// MatmulStream as a benchmark calls it: messages made once, sent and received side by side.
#ifndef TCGEMM_BENCH_STREAM_REQUEST_H_
#define TCGEMM_BENCH_STREAM_REQUEST_H_

#include <grpcpp/channel.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace tcgemm {

// The messages of a product of two bf16 matrices of size × size, the same random bits as
// MakeRandomRequest's, in panels of `panel_bytes` with their CRCs.
std::vector<grpc::ByteBuffer> MakeRandomStream(int64_t size, size_t panel_bytes);

struct StreamAnswer {
  grpc::Status status;            // DATA_LOSS when not every byte of D came
  grpc::ByteBuffer last;          // the message with the timings
  double first_byte_seconds = 0;  // from the start to the first panel of D
};

// One call; blocks. `result_bytes`: of D.
StreamAnswer CallStream(const std::shared_ptr<grpc::Channel>& channel,
                        const std::vector<grpc::ByteBuffer>& messages, size_t result_bytes);

}  // namespace tcgemm

#endif  // TCGEMM_BENCH_STREAM_REQUEST_H_
