// The smoke test: shapes from 1x1x1 to 1024³ through a server, some with an epilogue, each proved
// against the reference.
#ifndef TCGEMM_CLIENT_CLI_SMOKE_H_
#define TCGEMM_CLIENT_CLI_SMOKE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cli/exit_code.h"
#include "client/client.h"
#include "matrix/activation.h"

namespace tcgemm::client {

struct SmokeCase {
  int64_t m = 1;
  int64_t n = 1;
  int64_t k = 1;
  std::string layout = "NN";  // A, B: N as stored, T transposed
  int64_t padding = 0;        // elements between rows of A and B
  // The epilogue: with beta a C (fp32), with a bias a row (bf16) or a column (fp32).
  float alpha = 1;
  float beta = 0;
  enum class Bias { kNone, kRow, kColumn } bias = Bias::kNone;
  Activation activation = Activation::kNone;
};

// The cases of `smoke`, smallest first.
std::vector<SmokeCase> SmokeCases();

struct SmokeRow {
  SmokeCase shape;
  DType output = DType::kBf16;
  absl::Status status;  // of the call
  bool ok = false;      // the call worked and the result is right
  double max_error_ratio = 0;
  double ms = 0;
  double tflops = 0;   // as the server says
  std::string detail;  // of a wrong result
};

struct SmokeReport {
  std::string server;
  std::string device;
  std::vector<SmokeRow> rows;

  bool ok() const;
  ExitCode exit_code() const;
};

// Runs every case with both outputs. Stops early when the server cannot be reached: the rows so far
// and the one that failed are there. `on_row` is called after each row.
SmokeReport RunSmoke(Client& client, const std::string& server, const std::vector<SmokeCase>& cases,
                     const CallOptions& options,
                     const std::function<void(const SmokeRow&)>& on_row);

// A line of the table, and its head.
std::string SmokeHead();
std::string SmokeLine(const SmokeRow& row);
// One JSON object: {server, device, ok, rows: [{m, n, k, layout, output, max_error_ratio, ms,
// tflops, ok}]}; a row whose call failed has also "error".
std::string SmokeJson(const SmokeReport& report);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_SMOKE_H_
