#include "client/cli/smoke.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "matrix/epilogue.h"
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

struct SmokeEpilogue {
  Matrix c;
  Matrix bias;
  Epilogue epilogue;  // views of both
};

SmokeEpilogue MakeEpilogue(const SmokeCase& shape, uint64_t seed) {
  SmokeEpilogue made;
  made.epilogue.alpha = shape.alpha;
  made.epilogue.beta = shape.beta;
  made.epilogue.activation = shape.activation;
  if (shape.beta != 0) {
    made.c = Matrix(shape.m, shape.n, shape.n + shape.padding, DType::kFp32);
    FillNormal(made.c, seed);
    made.epilogue.c = made.c.view();
  }
  if (shape.bias != SmokeCase::Bias::kNone) {
    made.bias = shape.bias == SmokeCase::Bias::kRow ? Matrix(1, shape.n, DType::kBf16)
                                                    : Matrix(shape.m, 1, DType::kFp32);
    FillNormal(made.bias, seed + 1);
    made.epilogue.bias = made.bias.view();
  }
  return made;
}

// "alpha, C, bias row, gelu": what the case has of it; empty when nothing.
std::string EpilogueText(const SmokeCase& shape) {
  std::vector<std::string> parts;
  if (shape.alpha != 1) parts.emplace_back("alpha");
  if (shape.beta != 0) parts.emplace_back("C");
  if (shape.bias == SmokeCase::Bias::kRow) parts.emplace_back("bias row");
  if (shape.bias == SmokeCase::Bias::kColumn) parts.emplace_back("bias column");
  if (shape.activation != Activation::kNone) parts.emplace_back(ActivationName(shape.activation));
  return absl::StrJoin(parts, ", ");
}

void Judge(const Matrix& d, const Reference& reference, const Epilogue& epilogue, SmokeRow& row) {
  const absl::StatusOr<Comparison> comparison = CompareWithReference(d.view(), reference, epilogue);
  if (!comparison.ok()) {
    row.status = comparison.status();
    return;
  }
  row.ok = comparison->ok;
  row.max_error_ratio = comparison->max_error_ratio;
  if (!row.ok) row.detail = comparison->ToString();
}

// What a case multiplies, and what comes out.
struct SmokeProduct {
  MatrixView a;
  MatrixView b;
  Epilogue epilogue;
  Reference reference;
};

SmokeRow RunRow(Client& client, const SmokeCase& shape, DType output, const SmokeProduct& product,
                const CallOptions& options, Matrix& d) {
  SmokeRow row = {.shape = shape, .output = output};
  FillBytes(d, 0xff);  // what the server does not write is a NaN
  const absl::StatusOr<MatmulInfo> info =
      product.epilogue.is_default()
          ? client.Matmul(product.a, product.b, output, d, options)
          : client.MatmulWith(product.epilogue, product.a, product.b, output, d, options);
  row.status = info.status();
  if (!info.ok()) return row;
  row.ms = std::chrono::duration<double, std::milli>(info->round_trip).count();
  row.tflops = info->tflops;
  Judge(d, product.reference, product.epilogue, row);
  return row;
}

}  // namespace

std::vector<SmokeCase> SmokeCases() {
  return {{1, 1, 1, "NN"},
          {1, 1, 17, "NT"},
          {1, 64, 64, "NN"},
          {64, 1, 64, "TN"},
          {16, 16, 16, "NN"},
          {17, 19, 23, "NN"},
          {17, 19, 23, "TN"},
          {17, 19, 23, "NT"},
          {17, 19, 23, "TT"},
          {64, 64, 64, "NN"},
          {127, 129, 131, "NN", 5},
          {127, 129, 131, "TT", 3},
          {128, 256, 64, "TN"},
          {1, 1000, 1000, "NN"},
          {1000, 1, 333, "NT"},
          {255, 257, 511, "TN", 1},
          {512, 512, 512, "NT"},
          {509, 521, 523, "TT"},
          {1024, 1024, 1024, "NN"},
          {1024, 1024, 1024, "TN"},
          {17, 19, 23, "NN", 0, -0.5f, 1.5f},
          {1, 1000, 300, "NT", 0, 1, 0, SmokeCase::Bias::kRow, Activation::kRelu},
          {127, 129, 131, "TN", 5, 0.1f, 0.7f, SmokeCase::Bias::kRow, Activation::kGelu},
          {255, 257, 64, "TT", 0, 0.2f, -0.7f, SmokeCase::Bias::kColumn, Activation::kSilu}};
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
    const SmokeEpilogue epilogue = MakeEpilogue(shape, seed);
    seed += 2;
    SmokeProduct product = {
        .a = ViewOf(a, transpose_a), .b = ViewOf(b, transpose_b), .epilogue = epilogue.epilogue};
    product.reference = ComputeReference(product.a, product.b).value();
    for (const DType output : {DType::kBf16, DType::kFp32}) {
      report.rows.push_back(RunRow(client, shape, output, product, options, d));
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
  if (const std::string epilogue = EpilogueText(row.shape); !epilogue.empty()) {
    absl::StrAppend(&line, "  (", epilogue, ")");
  }
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
