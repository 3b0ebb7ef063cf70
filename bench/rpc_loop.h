// What closed-loop clients saw, and those of them whose matrices lie in shared memory.
#ifndef TCGEMM_BENCH_RPC_LOOP_H_
#define TCGEMM_BENCH_RPC_LOOP_H_

#include <grpcpp/support/byte_buffer.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/bench_product.h"
#include "kernels/gemm.h"

namespace tcgemm {

constexpr std::array kStages = {"receive", "decode", "queue",   "copy_in",
                                "kernel",  "verify", "copy_out"};  // fields 1 … 7 of Timings
using Stages = std::array<double, kStages.size()>;                 // ms

// What a response says about itself.
struct Answer {
  Stages stages{};
  int batched_with = 0;
};

struct Loop {
  std::vector<double> latency_ms;
  std::vector<Stages> stages;
  std::vector<double> respond_ms;  // from the first byte of the answer to its last, at the client
  double launches = 0;             // the calls' shares of theirs
  double wall_seconds = 0;
  int failures = 0;
  std::string error;

  void Append(const Loop& other) {
    latency_ms.insert(latency_ms.end(), other.latency_ms.begin(), other.latency_ms.end());
    stages.insert(stages.end(), other.stages.begin(), other.stages.end());
    respond_ms.insert(respond_ms.end(), other.respond_ms.begin(), other.respond_ms.end());
    launches += other.launches;
    failures += other.failures;
    if (error.empty()) error = other.error;
  }
};

// Of a response, or of a stream's last message, whose first field is one; D is not looked at.
Answer ReadAnswer(const grpc::ByteBuffer& response, bool is_stream);

// What is measured.
struct Cell {
  std::string server;
  std::string path;
  GemmShape shape;
  int clients = 0;
  double seconds = 0;

  bool is_shared() const { return path.rfind("shared_memory", 0) == 0; }
  // With B, or everything, on the server: of any shape.
  bool is_resident() const { return path.rfind("resident", 0) == 0; }
};

// Of a cell in shared memory, or of path `resident`: A and B uploaded, every D a matrix that stays
// until the server wants its room.
absl::StatusOr<std::unique_ptr<client::BenchProduct>> OpenProduct(const Cell& cell);
// `clients` threads that call, wait and call again until the time is over, at least once each.
Loop RunProduct(client::BenchProduct& product, int clients, double seconds);

}  // namespace tcgemm

#endif  // TCGEMM_BENCH_RPC_LOOP_H_
