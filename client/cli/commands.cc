#include "client/cli/commands.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "client/advice.h"
#include "client/cli/any_size.h"
#include "client/cli/check.h"
#include "client/cli/shape.h"
#include "client/cli/smoke.h"
#include "client/client.h"
#include "client/duration.h"
#include "client/shared_memory_client.h"
#include "matrix/matrix_file.h"
#include "matrix/npy.h"

namespace tcgemm::client {
namespace {

void Complain(const std::string& text) {
  std::fprintf(stderr, "tcgemm-client: %s\n", text.c_str());
}

ExitCode UsageError(const absl::Status& status) {
  Complain(std::string(status.message()));
  return ExitCode::kUsage;
}

// What went wrong with a call, and what to do about it.
ExitCode CallError(const GlobalOptions& global, const absl::Status& status) {
  Complain(Explain(status, {.server = global.server, .timeout = global.timeout}));
  return ExitCodeOf(status);
}

// Without a stream where it is too large.
absl::StatusOr<AnySizeInfo> MultiplyOnce(Client& client, const ProductViews& product, Matrix& d,
                                         const CallOptions& options) {
  TCGEMM_ASSIGN_OR_RETURN(MatmulInfo info, client.MatmulWith(product.epilogue, product.a, product.b,
                                                             product.output, d, options));
  return AnySizeInfo{.info = std::move(info)};
}

void PrintJson(const nlohmann::json& json) { std::printf("%s\n", json.dump().c_str()); }

// The two operands and whether the product transposes them.
struct Operands {
  Matrix a;
  Matrix b;
  bool transpose_a = false;
  bool transpose_b = false;
  MatrixView a_view() const { return transpose_a ? a.transposed_view() : a.view(); }
  MatrixView b_view() const { return transpose_b ? b.transposed_view() : b.view(); }
  EpilogueShape d() const { return {.m = a_view().op_rows(), .n = b_view().op_cols()}; }
};

// The matrix in a file, as bf16; says so when it had to round.
absl::StatusOr<Matrix> ReadOperand(const std::string& path, bool u2_is_bf16) {
  TCGEMM_ASSIGN_OR_RETURN(NpyMatrix file, ReadMatrixFile(path, {.u2_is_bf16 = u2_is_bf16}));
  if (file.matrix.dtype() == DType::kFp32) {
    std::fprintf(stderr, "%s: fp32, rounded to bf16 (nearest even)\n", path.c_str());
  } else if (!file.fortran_order) {
    return std::move(file.matrix);
  }
  return ToBf16Matrix(file.view());
}

absl::StatusOr<Operands> RandomOperands(const MatmulOptions& options) {
  TCGEMM_ASSIGN_OR_RETURN(const ProductShape shape, ParseShape("--random", options.random));
  Operands operands;
  const auto make = [](int64_t rows, int64_t cols, bool transposed) {
    return transposed ? Matrix(cols, rows, DType::kBf16) : Matrix(rows, cols, DType::kBf16);
  };
  operands.a = make(shape.m, shape.k, options.transpose_a);
  operands.b = make(shape.k, shape.n, options.transpose_b);
  FillNormal(operands.a, options.seed);
  FillNormal(operands.b, options.seed + 1);
  return operands;
}

// Also by another name, through links; false for a file that does not exist yet.
bool IsSameFile(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return std::filesystem::equivalent(FileOf(a), FileOf(b), ignored);
}

absl::StatusOr<Operands> LoadOperands(const MatmulOptions& options) {
  Operands operands;
  for (const std::string& operand :
       {options.a, options.b, options.epilogue.c, options.epilogue.bias}) {
    if (!IsSameFile(options.out, operand)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("-o ", options.out, " is an operand's file too; name another"));
  }
  if (!options.random.empty()) {
    if (!options.a.empty()) {
      return absl::InvalidArgumentError("give either files or --random, not both");
    }
    TCGEMM_ASSIGN_OR_RETURN(operands, RandomOperands(options));
  } else if (options.a.empty() || options.b.empty()) {
    return absl::InvalidArgumentError("matmul needs the files of A and B, or --random MxNxK");
  } else if (options.out.empty() && !options.check) {
    return absl::InvalidArgumentError("matmul needs -o FILE for the result, or --check");
  } else {
    TCGEMM_ASSIGN_OR_RETURN(operands.a, ReadOperand(options.a, options.u2_is_bf16));
    TCGEMM_ASSIGN_OR_RETURN(operands.b, ReadOperand(options.b, options.u2_is_bf16));
  }
  operands.transpose_a = options.transpose_a;
  operands.transpose_b = options.transpose_b;
  return operands;
}

nlohmann::json MatmulJson(const Matrix& d, const MatmulInfo& info) {
  return {{"m", d.rows()},
          {"n", d.cols()},
          {"output", std::string(DTypeName(d.dtype()))},
          {"kernel", info.kernel},
          {"tflops", info.tflops},
          {"batched_with", info.batched_with},
          {"lanes", info.lanes},
          {"ms", Milliseconds(info.round_trip)},
          {"receive_ms", Milliseconds(info.receive)},
          {"decode_ms", Milliseconds(info.decode)},
          {"queue_ms", Milliseconds(info.queue)},
          {"copy_in_ms", Milliseconds(info.copy_in)},
          {"kernel_ms", Milliseconds(info.kernel_time)},
          {"copy_out_ms", Milliseconds(info.copy_out)}};
}

// For --verbose.
void SayHow(const MatmulInfo& info) {
  Complain(absl::StrCat("over ", info.lanes, info.lanes == 1 ? " connection, " : " connections, ",
                        info.attempts, info.attempts == 1 ? " attempt" : " attempts"));
  if (!info.fallback.empty()) {
    Complain(absl::StrCat("not over several connections: ", info.fallback));
  }
}

void PrintMatmul(const Matrix& d, const MatmulInfo& info) {
  std::printf("D is %lldx%lld %s\n", static_cast<long long>(d.rows()),
              static_cast<long long>(d.cols()), std::string(DTypeName(d.dtype())).c_str());
  std::printf("kernel %s, %.3f TFLOPS, batched with %d others\n", info.kernel.c_str(), info.tflops,
              info.batched_with);
  std::printf(
      "%.3f ms: receive %.3f, decode %.3f, queue %.3f, copy in %.3f, kernel %.3f, "
      "copy out %.3f; the rest is the way\n",
      Milliseconds(info.round_trip), Milliseconds(info.receive), Milliseconds(info.decode),
      Milliseconds(info.queue), Milliseconds(info.copy_in), Milliseconds(info.kernel_time),
      Milliseconds(info.copy_out));
}

ExitCode Conclude(const Proof& proof) {
  std::printf("%s: %s\n", proof.ok ? "right" : "WRONG", proof.text.c_str());
  return proof.ok ? ExitCode::kRight : ExitCode::kWrongResult;
}

nlohmann::json ProofJson(const Proof& proof) {
  const double ratio = std::isfinite(proof.max_error_ratio) ? proof.max_error_ratio
                                                            : std::numeric_limits<double>::max();
  return {{"ok", proof.ok}, {"max_error_ratio", ratio}, {"detail", proof.text}};
}

// Writes, proves and prints a result.
ExitCode HandleResult(const GlobalOptions& global, const MatmulOptions& options,
                      const Operands& operands, const Epilogue& epilogue, const Matrix& d,
                      const AnySizeInfo& made) {
  nlohmann::json json = MatmulJson(d, made.info);
  json["streamed"] = made.streamed;
  if (!global.json) PrintMatmul(d, made.info);
  if (!options.out.empty()) {
    if (const absl::Status written = WriteMatrixFile(options.out, d.view()); !written.ok()) {
      Complain(std::string(written.message()));
      return ExitCode::kOtherStatus;
    }
  }
  ExitCode code = ExitCode::kRight;
  if (options.check) {
    const absl::StatusOr<Proof> proof =
        Prove(operands.a_view(), operands.b_view(), d.view(), epilogue);
    if (!proof.ok()) return UsageError(proof.status());
    json["check"] = ProofJson(*proof);
    code = proof->ok ? ExitCode::kRight : ExitCode::kWrongResult;
    if (!global.json) Conclude(*proof);
  }
  if (global.json) PrintJson(json);
  return code;
}

}  // namespace

ExitCode RunInfo(const GlobalOptions& global) {
  const auto client = Client::Create(global.Connection());
  if (!client.ok()) return UsageError(client.status());
  const absl::StatusOr<ServerInfo> info = (*client)->GetServerInfo({.timeout = global.timeout});
  if (!info.ok()) return CallError(global, info.status());
  if (global.json) {
    PrintJson({{"server", global.server},
               {"version", info->version},
               {"commit", info->commit},
               {"device", info->device},
               {"device_description", info->device_description},
               {"backend", info->backend},
               {"cuda", info->cuda},
               {"ready", info->ready},
               {"draining", info->draining},
               {"max_message_bytes", info->max_message_bytes},
               {"max_request_memory_bytes", info->max_request_memory_bytes},
               {"max_batch", info->max_batch},
               {"max_queue_delay_us", info->max_queue_delay_us},
               {"uptime_seconds", info->uptime_seconds},
               {"kernels", info->kernels}});
    return ExitCode::kRight;
  }
  std::printf("server       %s, version %s (commit %s)\n", global.server.c_str(),
              info->version.c_str(), info->commit.c_str());
  std::printf("device       %s: %s\n", info->device.c_str(), info->device_description.c_str());
  std::printf("kernels      %s\n", absl::StrJoin(info->kernels, ", ").c_str());
  std::printf("state        %s%s, up %lld s\n", info->ready ? "ready" : "not ready",
              info->draining ? ", draining" : "", static_cast<long long>(info->uptime_seconds));
  std::printf("limits       message %lld bytes, A + B + C + bias + D %lld bytes\n",
              static_cast<long long>(info->max_message_bytes),
              static_cast<long long>(info->max_request_memory_bytes));
  std::printf("batching     up to %d requests, waiting up to %lld us\n", info->max_batch,
              static_cast<long long>(info->max_queue_delay_us));
  return ExitCode::kRight;
}

ExitCode RunHealth(const GlobalOptions& global, const std::string& service) {
  const auto client = Client::Create(global.Connection());
  if (!client.ok()) return UsageError(client.status());
  // A probe says what is; it does not wait until it is better.
  const absl::StatusOr<Health> health =
      (*client)->CheckHealth(service, {.timeout = global.timeout, .retry = false});
  if (!health.ok()) return CallError(global, health.status());
  const char* const text = *health == Health::kServing      ? "SERVING"
                           : *health == Health::kNotServing ? "NOT_SERVING"
                                                            : "UNKNOWN";
  if (global.json) {
    PrintJson({{"server", global.server}, {"service", service}, {"status", text}});
  } else {
    std::printf("%s\n", text);
  }
  return *health == Health::kServing ? ExitCode::kRight : ExitCode::kWrongResult;
}

ExitCode RunSmokeCommand(const GlobalOptions& global, bool shared_memory) {
  const auto client = shared_memory ? CreateSharedMemoryClient(global.Connection())
                                    : Client::Create(global.Connection());
  if (!client.ok()) return UsageError(client.status());
  if (!global.json) std::printf("%s\n", SmokeHead().c_str());
  absl::Status failed;
  const SmokeReport report = RunSmoke(**client, global.server, SmokeCases(),
                                      {.timeout = global.timeout}, [&](const SmokeRow& row) {
                                        if (!row.status.ok()) failed = row.status;
                                        if (!global.json)
                                          std::printf("%s\n", SmokeLine(row).c_str());
                                      });
  if (!failed.ok()) CallError(global, failed);
  if (global.json) {
    std::printf("%s\n", SmokeJson(report).c_str());
    return report.exit_code();
  }
  size_t right = 0;
  for (const SmokeRow& row : report.rows) right += row.ok ? 1 : 0;
  std::printf("%zu of %zu results within the bound on %s (%s)\n", right, report.rows.size(),
              report.device.c_str(), global.server.c_str());
  return report.exit_code();
}

ExitCode RunMatmul(const GlobalOptions& global, const MatmulOptions& options) {
  const absl::StatusOr<Operands> operands = LoadOperands(options);
  if (!operands.ok()) return UsageError(operands.status());
  const absl::StatusOr<LoadedEpilogue> loaded =
      LoadEpilogue(options.epilogue, operands->d(), options.u2_is_bf16);
  if (!loaded.ok()) return UsageError(loaded.status());
  const auto client = options.shared_memory ? CreateSharedMemoryClient(global.Connection())
                                            : Client::Create(global.Connection(options.lanes));
  if (!client.ok()) return UsageError(client.status());
  const ProductViews product = {.a = operands->a_view(),
                                .b = operands->b_view(),
                                .output = options.output == "fp32" ? DType::kFp32 : DType::kBf16,
                                .epilogue = loaded->epilogue};
  Matrix d;
  const CallOptions call = options.Call(global.timeout);
  const absl::StatusOr<AnySizeInfo> made =
      options.shared_memory
          ? MultiplyOnce(**client, product, d, call)
          : MultiplyAnySize(**client, global.Connection(), product, options.stream, d, call);
  if (!made.ok()) return CallError(global, made.status());
  if (global.verbose) SayHow(made->info);
  return HandleResult(global, options, *operands, loaded->epilogue, d, *made);
}

ExitCode RunCheck(const GlobalOptions& global, const CheckOptions& options) {
  const absl::StatusOr<Matrix> a = ReadOperand(options.a, options.u2_is_bf16);
  if (!a.ok()) return UsageError(a.status());
  const absl::StatusOr<Matrix> b = ReadOperand(options.b, options.u2_is_bf16);
  if (!b.ok()) return UsageError(b.status());
  const absl::StatusOr<NpyMatrix> d = ReadMatrixFile(options.d, {.u2_is_bf16 = options.u2_is_bf16});
  if (!d.ok()) return UsageError(d.status());
  if (d->fortran_order) {
    return UsageError(absl::InvalidArgumentError(
        absl::StrCat(options.d, ": D must be in C order (np.ascontiguousarray)")));
  }
  const MatrixView a_view = options.transpose_a ? a->transposed_view() : a->view();
  const MatrixView b_view = options.transpose_b ? b->transposed_view() : b->view();
  const absl::StatusOr<LoadedEpilogue> loaded = LoadEpilogue(
      options.epilogue, {.m = a_view.op_rows(), .n = b_view.op_cols()}, options.u2_is_bf16);
  if (!loaded.ok()) return UsageError(loaded.status());
  const absl::StatusOr<Proof> proof = Prove(a_view, b_view, d->view(), loaded->epilogue);
  if (!proof.ok()) return UsageError(proof.status());
  if (!global.json) return Conclude(*proof);
  PrintJson(ProofJson(*proof));
  return proof->ok ? ExitCode::kRight : ExitCode::kWrongResult;
}

}  // namespace tcgemm::client
