// tcgemm-client bench: the same product again and again, and how long it took.
#ifndef TCGEMM_CLIENT_CLI_BENCH_H_
#define TCGEMM_CLIENT_CLI_BENCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "client/cli/bench_report.h"
#include "client/cli/commands.h"
#include "client/cli/exit_code.h"
#include "client/client.h"

namespace tcgemm::client {

struct BenchOptions {
  std::string shape = "1024x1024x1024";
  std::string output = "bf16";
  bool shared_memory = false;  // A and B written once into it, D read in place
  bool resident = false;       // with shared_memory: A and B are resident matrices
  std::string path = "unary";  // or "stream"
  bool transpose_a = false;
  bool transpose_b = false;
  int clients = 1;      // 1 … 1024
  int connections = 0;  // 1 … clients; 0: one for each client
  double rate = 0;      // requests per second; 0: closed loop
  Nanos duration{0};    // 0: no limit, or 10 s when `requests` is 0 too
  int64_t requests = 0;
  Nanos warmup = std::chrono::seconds(1);
  uint64_t seed = 1;
  int lanes = 0;  // ClientOptions.lanes
};

// INVALID_ARGUMENT, naming the flag, the value and the limit, when the options do not fit each
// other or this machine's memory.
absl::Status CheckBenchOptions(const BenchOptions& options);

// Warms up, runs the load over `connections`, and proves one result. Calls are not retried: each
// refusal counts. As CheckBenchOptions, before any call. Fills all of the report but server and
// device.
absl::StatusOr<BenchReport> Bench(const std::vector<std::unique_ptr<Client>>& connections,
                                  const BenchOptions& options, Nanos timeout,
                                  const std::function<void(const LoadReport&)>& on_progress);

// The same in memory that is shared with the server at `server`, over options.connections (0: one
// for each client). Errors of CreateRegionProduct too.
absl::StatusOr<BenchReport> BenchSharedMemory(
    const ClientOptions& server, const BenchOptions& options, Nanos timeout,
    const std::function<void(const LoadReport&)>& on_progress);

// The command. A server that cannot be reached is said at once.
ExitCode RunBench(const GlobalOptions& global, const BenchOptions& options);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_BENCH_H_
