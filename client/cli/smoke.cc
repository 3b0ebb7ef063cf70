#include "client/cli/smoke.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "matrix/matrix.h"
#include "matrix/reference.h"

namespace tcgemm::client {
namespace {

// An operand of op-shape rows × cols, stored as `transposed` says.
Matrix MakeOperand(int64_t rows, int64_t cols, bool transposed, int64_t padding, uint64_t seed) {
  if (transposed) std::swap(rows, cols);
  Matrix matrix(rows, cols, cols + padding, DType::kBf16);
  FillNormal(matrix, seed);
  return matrix;
}

MatrixView ViewOf(const Matrix& matrix, bool transposed) {
  return transposed ? matrix.transposed_view() : matrix.view();
}

void Judge(const Matrix& d, const Reference& reference, SmokeRow& row) {
  const absl::StatusOr<Comparison> comparison = CompareWithReference(d.view(), reference);
  if (!comparison.ok()) {
    row.status = comparison.status();
    return;
  }
  row.ok = comparison->ok;
  row.max_error_ratio = comparison->max_error_ratio;
  if (!row.ok) row.detail = comparison->ToString();
}

SmokeRow RunRow(Client& client, const SmokeCase& shape, DType output, const MatrixView& a,
                const MatrixView& b, const Reference& reference, const CallOptions& options,
                Matrix& d) {
  SmokeRow row = {.shape = shape, .output = output};
  FillBytes(d, 0xff);  // what the server does not write is a NaN
  const absl::StatusOr<MatmulInfo> info = client.Matmul(a, b, output, d, options);
  row.status = info.status();
  if (!info.ok()) return row;
  row.ms = std::chrono::duration<double, std::milli>(info->round_trip).count();
  row.tflops = info->tflops;
  Judge(d, reference, row);
  return row;
}

}  // namespace

std::vector<SmokeCase> SmokeCases() {
  return {{1, 1, 1, "NN"},          {1, 1, 17, "NT"},         {1, 64, 64, "NN"},
          {64, 1, 64, "TN"},        {16, 16, 16, "NN"},       {17, 19, 23, "NN"},
          {17, 19, 23, "TN"},       {17, 19, 23, "NT"},       {17, 19, 23, "TT"},
          {64, 64, 64, "NN"},       {127, 129, 131, "NN", 5}, {127, 129, 131, "TT", 3},
          {128, 256, 64, "TN"},     {1, 1000, 1000, "NN"},    {1000, 1, 333, "NT"},
          {255, 257, 511, "TN", 1}, {512, 512, 512, "NT"},    {509, 521, 523, "TT"},
          {1024, 1024, 1024, "NN"}, {1024, 1024, 1024, "TN"}};
}

bool SmokeReport::ok() const {
  return !rows.empty() &&
         std::all_of(rows.begin(), rows.end(), [](const SmokeRow& row) { return row.ok; });
}

ExitCode SmokeReport::exit_code() const {
  ExitCode code = rows.empty() ? ExitCode::kOtherStatus : ExitCode::kRight;
  for (const SmokeRow& row : rows) {
    if (row.ok) continue;
    code = Combine(code, row.status.ok() ? ExitCode::kWrongResult : ExitCodeOf(row.status));
  }
  return code;
}

SmokeReport RunSmoke(Client& client, const std::string& server, const std::vector<SmokeCase>& cases,
                     const CallOptions& options,
                     const std::function<void(const SmokeRow&)>& on_row) {
  SmokeReport report = {.server = server};
  if (const auto info = client.GetServerInfo(options); info.ok()) report.device = info->device;
  Matrix d;
  uint64_t seed = 1;
  for (const SmokeCase& shape : cases) {
    const bool transpose_a = shape.layout.at(0) == 'T';
    const bool transpose_b = shape.layout.at(1) == 'T';
    const Matrix a = MakeOperand(shape.m, shape.k, transpose_a, shape.padding, seed++);
    const Matrix b = MakeOperand(shape.k, shape.n, transpose_b, shape.padding, seed++);
    const Reference reference =
        ComputeReference(ViewOf(a, transpose_a), ViewOf(b, transpose_b)).value();
    for (const DType output : {DType::kBf16, DType::kFp32}) {
      report.rows.push_back(RunRow(client, shape, output, ViewOf(a, transpose_a),
                                   ViewOf(b, transpose_b), reference, options, d));
      on_row(report.rows.back());
      if (ExitCodeOf(report.rows.back().status) == ExitCode::kUnreachable) return report;
    }
  }
  return report;
}

std::string SmokeHead() {
  return absl::StrFormat("%6s %6s %6s  %-6s  %-6s  %11s  %9s  %8s  %s", "M", "N", "K", "layout",
                         "output", "error/bound", "ms", "TFLOPS", "");
}

std::string SmokeLine(const SmokeRow& row) {
  std::string line = absl::StrFormat(
      "%6d %6d %6d  %-6s  %-6s  ", row.shape.m, row.shape.n, row.shape.k,
      row.shape.layout + (row.shape.padding > 0 ? "+ld" : ""), std::string(DTypeName(row.output)));
  if (!row.status.ok()) return line + "the call failed";
  absl::StrAppendFormat(&line, "%11.3f  %9.3f  %8.3f  %s", row.max_error_ratio, row.ms, row.tflops,
                        row.ok ? "ok" : "WRONG");
  if (!row.ok) absl::StrAppend(&line, "  ", row.detail);
  return line;
}

std::string SmokeJson(const SmokeReport& report) {
  nlohmann::json json = {{"server", report.server},
                         {"device", report.device},
                         {"ok", report.ok()},
                         {"rows", nlohmann::json::array()}};
  for (const SmokeRow& row : report.rows) {
    // JSON has no infinity.
    const double ratio = std::isfinite(row.max_error_ratio) ? row.max_error_ratio
                                                            : std::numeric_limits<double>::max();
    nlohmann::json line = {{"m", row.shape.m},
                           {"n", row.shape.n},
                           {"k", row.shape.k},
                           {"layout", row.shape.layout},
                           {"output", std::string(DTypeName(row.output))},
                           {"max_error_ratio", ratio},
                           {"ms", row.ms},
                           {"tflops", row.tflops},
                           {"ok", row.ok}};
    if (!row.status.ok()) line["error"] = std::string(row.status.message());
    json["rows"].push_back(std::move(line));
  }
  return json.dump();
}

}  // namespace tcgemm::client
