// MatmulStream calls for the tests: a stock stub, sending and receiving side by side.
#ifndef TCGEMM_TESTS_RPC_STREAM_TESTER_H_
#define TCGEMM_TESTS_RPC_STREAM_TESTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/rpc/rpc_fixture.h"

namespace tcgemm {

// Random elements; op(A) is m×k, op(B) k×n.
struct StreamShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  v1::DType output = v1::FP32;
};
v1::MatmulRequest RandomRequest(const StreamShape& shape, uint32_t seed = 1);

// The request as a stream's header: its inline bytes left out.
v1::MatmulStreamRequest StreamHeader(const v1::MatmulRequest& request);
v1::MatmulStreamRequest PanelA(int64_t offset, const std::string& data);
v1::MatmulStreamRequest PanelB(int64_t offset, const std::string& data);
// Header and panels, with CRCs, of what is inline in the request.
std::vector<v1::MatmulStreamRequest> StreamOf(const v1::MatmulRequest& request, size_t chunk);

struct Streamed {
  grpc::Status status;
  v1::MatmulResponse first;
  v1::MatmulResponse last;
  std::string d;  // in order, CRCs checked
  int panels = 0;
};
struct StreamCallOptions {
  int timeout_ms = 20000;
  bool half_close = true;
};
Streamed Stream(RpcFixture& fixture, const std::vector<v1::MatmulStreamRequest>& messages,
                const StreamCallOptions& options = {});

// Blocks until no call holds pinned or resident memory any more.
void AwaitNothingHeld(RpcFixture& fixture);

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_RPC_STREAM_TESTER_H_
