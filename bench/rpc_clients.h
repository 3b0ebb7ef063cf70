// Closed-loop clients that send messages made once, and what they saw.
#ifndef TCGEMM_BENCH_RPC_CLIENTS_H_
#define TCGEMM_BENCH_RPC_CLIENTS_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <string>
#include <vector>

#include "bench/rpc_loop.h"

namespace tcgemm {

// What a path sends: one message, or those of a stream.
struct Request {
  grpc::ByteBuffer message;
  std::vector<grpc::ByteBuffer> stream;
  size_t result_bytes = 0;

  bool is_stream() const { return !stream.empty(); }
};

// Each of `clients` threads, with a connection of its own, calls until the time is over, at least
// twice; the first calls of each only connect. `is_ours`: the answers name stages.
Loop RunClients(const std::string& address, const Request& request, int clients, double seconds,
                bool is_ours);

// 0 of no values.
double Percentile(std::vector<double> values, double share);

}  // namespace tcgemm

#endif  // TCGEMM_BENCH_RPC_CLIENTS_H_
