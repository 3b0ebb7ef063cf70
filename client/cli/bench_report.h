// What tcgemm-client bench found, for people and as JSON.
#ifndef TCGEMM_CLIENT_CLI_BENCH_REPORT_H_
#define TCGEMM_CLIENT_CLI_BENCH_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "client/cli/check.h"
#include "client/cli/exit_code.h"
#include "client/cli/shape.h"
#include "client/load/load_generator.h"
#include "matrix/dtype.h"

namespace tcgemm::client {

struct BenchReport {
  std::string server;
  std::string device;  // empty: the server did not say
  ProductShape shape;
  std::string layout = "NN";  // of A and B: N as stored, T transposed
  DType output = DType::kBf16;
  std::string path = "unary";  // or "stream", "shared_memory", "shared_memory_resident"
  int clients = 0;
  int connections = 0;
  double rate = 0;              // 0: closed loop
  int64_t warmup_requests = 0;  // sent before what `load` counts
  LoadReport load;
  std::optional<Proof> proof;  // of one result; none when no call succeeded

  // The proof failed: 1. No call of the measured ones succeeded: what their codes say.
  ExitCode exit_code() const;
  double requests_per_second() const;     // that succeeded
  double sent_gbytes_per_second() const;  // operands of those, 10^9 bytes
  double received_gbytes_per_second() const;
  double tflops() const;  // that were served: of those, over the time on the wall
};

// Several lines, the last without its end.
std::string BenchTable(const BenchReport& report);
// One object. Latencies and stages in ms; see docs/OPERATIONS.md for its fields.
std::string BenchJson(const BenchReport& report);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_BENCH_REPORT_H_
