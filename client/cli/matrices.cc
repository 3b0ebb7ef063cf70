#include "client/cli/matrices.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "client/advice.h"
#include "client/duration.h"
#include "client/matrix_client.h"
#include "client/stream_client.h"
#include "client/wire.h"
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

ExitCode CallError(const GlobalOptions& global, const absl::Status& status) {
  std::string text = Explain(status, {.server = global.server, .timeout = global.timeout});
  if (absl::IsNotFound(status)) text += " (`tcgemm-client list` tells what is there)";
  if (absl::IsAlreadyExists(status)) {
    text += " (`tcgemm-client delete`, or `upload --resume` to finish a broken upload)";
  }
  if (absl::IsFailedPrecondition(status)) text += " (`upload FILE --name NAME --resume` ends it)";
  Complain(text);
  return ExitCodeOf(status);
}

void PrintJson(const nlohmann::json& json) { std::printf("%s\n", json.dump().c_str()); }

absl::StatusOr<Matrix> ReadBf16(const std::string& path, bool u2_is_bf16) {
  TCGEMM_ASSIGN_OR_RETURN(const NpyMatrix file, ReadNpy(path, {.u2_is_bf16 = u2_is_bf16}));
  if (file.matrix.dtype() == DType::kFp32) {
    std::fprintf(stderr, "%s: fp32, rounded to bf16 (nearest even)\n", path.c_str());
  }
  return ToBf16Matrix(file.view());
}

// An operand of the command line, and the memory behind it.
struct Operand {
  Matrix matrix;
  Factor factor;
};

absl::StatusOr<Operand> ReadFactor(const std::string& text, bool transpose, bool u2_is_bf16) {
  Operand operand;
  if (text.rfind('@', 0) == 0) {
    if (text.size() == 1) return absl::InvalidArgumentError("@ must be followed by a handle");
    operand.factor.handle = text.substr(1);
    operand.factor.transposed = transpose;
    return operand;
  }
  TCGEMM_ASSIGN_OR_RETURN(operand.matrix, ReadBf16(text, u2_is_bf16));
  operand.factor.view = transpose ? operand.matrix.transposed_view() : operand.matrix.view();
  return operand;
}

// C or the bias of the command line: like an operand, but in its own type.
absl::StatusOr<Operand> ReadAddend(const std::string& text, bool u2_is_bf16) {
  if (text.rfind('@', 0) == 0) return ReadFactor(text, false, u2_is_bf16);
  Operand addend;
  TCGEMM_ASSIGN_OR_RETURN(addend.matrix, LoadAddend(text, u2_is_bf16));
  addend.factor.view = addend.matrix.view();
  return addend;
}

struct ReadEpilogue {
  Operand c;
  Operand bias;
  FactorEpilogue factors;
};

// Shapes are left to the server, which knows those of resident matrices.
absl::StatusOr<ReadEpilogue> ReadEpilogueFactors(const EpilogueFlags& flags, bool u2_is_bf16) {
  ReadEpilogue read;
  read.factors.alpha = flags.alpha;
  read.factors.beta = flags.beta_or_default();
  read.factors.activation = ActivationOf(flags.activation);
  if (!flags.c.empty()) {
    TCGEMM_ASSIGN_OR_RETURN(read.c, ReadAddend(flags.c, u2_is_bf16));
    read.factors.c = read.c.factor;
  }
  if (!flags.bias.empty()) {
    TCGEMM_ASSIGN_OR_RETURN(read.bias, ReadAddend(flags.bias, u2_is_bf16));
    if (read.bias.factor.handle.empty() && flags.bias_axis != "auto") {
      TCGEMM_RETURN_IF_ERROR(TurnBias(read.bias.matrix, flags.bias_axis));
      read.bias.factor.view = read.bias.matrix.view();
    }
    read.factors.bias = read.bias.factor;
  }
  return read;
}

absl::Status CheckUse(const MatmulOptions& options) {
  if (!options.random.empty() || options.a.empty() || options.b.empty()) {
    return absl::InvalidArgumentError("with @HANDLE or --keep, matmul needs A and B by name");
  }
  if (options.check) {
    return absl::InvalidArgumentError(
        "--check needs both operands and D here: download them, then `tcgemm-client check`");
  }
  if (options.shared_memory) {
    return absl::InvalidArgumentError("--shared-memory is for operands and a result that are here");
  }
  if (options.lanes != 0) {
    return absl::InvalidArgumentError(
        "--lanes is for operands and a result that travel: `tcgemm-client upload --lanes` first");
  }
  if (options.keep && !options.out.empty()) {
    return absl::InvalidArgumentError("--keep leaves D on the server: give no -o");
  }
  if (!options.keep && options.out.empty()) {
    return absl::InvalidArgumentError("matmul needs -o D.npy for the result, or --keep");
  }
  return absl::OkStatus();
}

StreamedOperand StreamFactor(const Factor& factor) {
  if (factor.handle.empty()) return StreamView(factor.view);
  return {.handle = factor.handle, .transposed = factor.transposed};
}

double SentBytes(const Factor& factor) {
  return static_cast<double>(factor.view.rows) * static_cast<double>(factor.view.cols) *
         static_cast<double>(DTypeSize(factor.view.dtype));
}

struct ProductFactors {
  const FactorEpilogue& epilogue;
  const Factor& a;
  const Factor& b;
};

// In one message where that is possible.
absl::StatusOr<Product> MultiplyFactors(const GlobalOptions& global, const MatmulOptions& options,
                                        const ProductFactors& factors, Matrix& d) {
  const auto& [epilogue, a, b] = factors;
  const DType output = options.output == "fp32" ? DType::kFp32 : DType::kBf16;
  const CallOptions call = options.Call(global.timeout);
  // Headers, and what is added to a message on the way, stay far below a tenth.
  const auto travels = [](const std::optional<Factor>& addend) {
    return addend.has_value() && addend->handle.empty();
  };
  const bool plain = !travels(epilogue.c) && !travels(epilogue.bias);
  if (!options.stream && (!plain || SentBytes(a) + SentBytes(b) < 0.9 * kMaxMessageBytes)) {
    TCGEMM_ASSIGN_OR_RETURN(const auto client, MatrixClient::Create(global.Connection()));
    absl::StatusOr<Product> product =
        client->MultiplyWith(epilogue, a, b, output, options.keep, options.keep_name, d, call);
    if (!plain || !IsRefusedSize(product.status())) return product;
  }
  if (!plain) {
    return absl::UnimplementedError(
        "a stream takes no C and no bias of its own: upload them, and name them @HANDLE");
  }
  TCGEMM_ASSIGN_OR_RETURN(const auto client, StreamClient::Create(global.Connection()));
  return client->Multiply({.a = StreamFactor(a),
                           .b = StreamFactor(b),
                           .epilogue = epilogue,
                           .output = output,
                           .keep = options.keep,
                           .keep_name = options.keep_name},
                          StreamInto(&d, output), call);
}

}  // namespace

ExitCode RunUpload(const GlobalOptions& global, const UploadCommand& command) {
  if (command.resume && command.name.empty()) {
    return UsageError(absl::InvalidArgumentError("--resume needs the --name of the matrix"));
  }
  const absl::StatusOr<Matrix> matrix = ReadBf16(command.file, command.u2_is_bf16);
  if (!matrix.ok()) return UsageError(matrix.status());
  const auto client = MatrixClient::Create(global.Connection(command.lanes));
  if (!client.ok()) return UsageError(client.status());
  absl::StatusOr<std::string> handle = command.name;
  if (command.resume) {
    const absl::Status resumed =
        (*client)->Resume(command.name, matrix->view(), {.timeout = global.timeout});
    if (!resumed.ok()) handle = resumed;
  } else {
    handle = (*client)->Upload(matrix->view(), {.name = command.name, .ttl = command.ttl},
                               {.timeout = global.timeout});
  }
  if (!handle.ok()) return CallError(global, handle.status());
  if (global.json) {
    PrintJson({{"handle", *handle}, {"rows", matrix->rows()}, {"cols", matrix->cols()}});
  } else {
    std::printf("%s\n", handle->c_str());
  }
  return ExitCode::kRight;
}

ExitCode RunDownload(const GlobalOptions& global, const DownloadCommand& command) {
  const auto client = MatrixClient::Create(global.Connection(command.lanes));
  if (!client.ok()) return UsageError(client.status());
  Matrix matrix;
  const absl::Status status =
      (*client)->Download(command.handle, matrix, {.timeout = global.timeout});
  if (!status.ok()) return CallError(global, status);
  if (const absl::Status written = WriteNpy(command.file, matrix.view()); !written.ok()) {
    Complain(std::string(written.message()));
    return ExitCode::kOtherStatus;
  }
  if (global.json) {
    PrintJson({{"handle", command.handle},
               {"file", command.file},
               {"rows", matrix.rows()},
               {"cols", matrix.cols()},
               {"dtype", std::string(DTypeName(matrix.dtype()))}});
  } else {
    std::printf("%s is %lldx%lld %s\n", command.file.c_str(), static_cast<long long>(matrix.rows()),
                static_cast<long long>(matrix.cols()),
                std::string(DTypeName(matrix.dtype())).c_str());
  }
  return ExitCode::kRight;
}

ExitCode RunList(const GlobalOptions& global) {
  const auto client = MatrixClient::Create(global.Connection());
  if (!client.ok()) return UsageError(client.status());
  const auto matrices = (*client)->List({.timeout = global.timeout});
  if (!matrices.ok()) return CallError(global, matrices.status());
  nlohmann::json rows = nlohmann::json::array();
  for (const StoredMatrix& matrix : *matrices) {
    const std::string dtype(DTypeName(matrix.dtype));
    if (!global.json) {
      std::printf("%-32s %lldx%lld %s%s%s\n", matrix.handle.c_str(),
                  static_cast<long long>(matrix.rows), static_cast<long long>(matrix.cols),
                  dtype.c_str(), matrix.preloaded ? ", preloaded" : "",
                  matrix.complete ? "" : ", not there in full");
    }
    rows.push_back({{"handle", matrix.handle},
                    {"name", matrix.name},
                    {"rows", matrix.rows},
                    {"cols", matrix.cols},
                    {"dtype", dtype},
                    {"bytes", matrix.bytes},
                    {"preloaded", matrix.preloaded},
                    {"complete", matrix.complete}});
  }
  if (global.json) PrintJson({{"server", global.server}, {"matrices", rows}});
  return ExitCode::kRight;
}

ExitCode RunDelete(const GlobalOptions& global, const std::string& handle) {
  const auto client = MatrixClient::Create(global.Connection());
  if (!client.ok()) return UsageError(client.status());
  const absl::Status status = (*client)->Delete(handle, {.timeout = global.timeout});
  if (!status.ok()) return CallError(global, status);
  if (global.json) PrintJson({{"deleted", handle}});
  return ExitCode::kRight;
}

bool UsesResidents(const MatmulOptions& options) {
  const EpilogueFlags& epilogue = options.epilogue;
  bool uses = options.keep;
  for (const std::string* operand : {&options.a, &options.b, &epilogue.c, &epilogue.bias}) {
    uses = uses || operand->rfind('@', 0) == 0;
  }
  return uses;
}

ExitCode RunResidentMatmul(const GlobalOptions& global, const MatmulOptions& options) {
  if (const absl::Status use = CheckUse(options); !use.ok()) return UsageError(use);
  const auto a = ReadFactor(options.a, options.transpose_a, options.u2_is_bf16);
  if (!a.ok()) return UsageError(a.status());
  const auto b = ReadFactor(options.b, options.transpose_b, options.u2_is_bf16);
  if (!b.ok()) return UsageError(b.status());
  const auto epilogue = ReadEpilogueFactors(options.epilogue, options.u2_is_bf16);
  if (!epilogue.ok()) return UsageError(epilogue.status());
  if (const auto client = MatrixClient::Create(global.Connection()); !client.ok()) {
    return UsageError(client.status());
  }
  Matrix d;
  const absl::StatusOr<Product> product =
      MultiplyFactors(global, options, {epilogue->factors, a->factor, b->factor}, d);
  if (!product.ok()) return CallError(global, product.status());
  if (!options.keep) {
    if (const absl::Status written = WriteNpy(options.out, d.view()); !written.ok()) {
      Complain(std::string(written.message()));
      return ExitCode::kOtherStatus;
    }
  }
  if (global.json) {
    PrintJson({{"m", product->rows},
               {"n", product->cols},
               {"output", options.output},
               {"handle", product->handle},
               {"kernel", product->info.kernel},
               {"tflops", product->info.tflops},
               {"batched_with", product->info.batched_with},
               {"ms", Milliseconds(product->info.round_trip)},
               {"kernel_ms", Milliseconds(product->info.kernel_time)}});
  } else if (options.keep) {
    std::printf("%s\n", product->handle.c_str());
  } else {
    std::printf("D is %lldx%lld %s, %.3f ms\n", static_cast<long long>(product->rows),
                static_cast<long long>(product->cols), options.output.c_str(),
                Milliseconds(product->info.round_trip));
  }
  return ExitCode::kRight;
}

}  // namespace tcgemm::client
