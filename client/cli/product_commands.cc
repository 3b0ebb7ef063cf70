// matmul and check.
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "client/advice.h"
#include "client/cli/command.h"
#include "client/cli/operands.h"
#include "client/cli/proof.h"
#include "client/duration.h"
#include "matrix/npy.h"

namespace tcgemm::client {
namespace {

// Nothing that made D may know what it is checked with.
uint64_t FreshSeed() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

struct Operands {
  Operand a;
  Operand b;
};

absl::StatusOr<Operands> ReadOperands(const CheckFlags& flags) {
  Operands operands;
  TCGEMM_ASSIGN_OR_RETURN(operands.a, ReadOperand(flags.a, {.transpose = flags.transpose_a,
                                                            .u2_is_bf16 = flags.u2_is_bf16}));
  TCGEMM_ASSIGN_OR_RETURN(operands.b, ReadOperand(flags.b, {.transpose = flags.transpose_b,
                                                            .u2_is_bf16 = flags.u2_is_bf16}));
  return operands;
}

absl::StatusOr<Operands> MakeOperands(const MatmulFlags& flags) {
  if (flags.random.empty()) {
    return ReadOperands({.a = flags.a,
                         .b = flags.b,
                         .transpose_a = flags.transpose_a,
                         .transpose_b = flags.transpose_b,
                         .u2_is_bf16 = flags.u2_is_bf16});
  }
  TCGEMM_ASSIGN_OR_RETURN(const ProductShape shape, ParseProductShape(flags.random));
  return Operands{.a = RandomOperand(shape.m, shape.k, flags.transpose_a, flags.seed),
                  .b = RandomOperand(shape.k, shape.n, flags.transpose_b, flags.seed + 1)};
}

void NoteRounding(const Session& session, const Operands& operands) {
  if (!operands.a.rounded && !operands.b.rounded) return;
  const char* const which = !operands.a.rounded  ? "B is"
                            : operands.b.rounded ? "A and B are"
                                                 : "A is";
  session.Note(absl::StrCat(which, " fp32; rounded to bf16 (to nearest even) for the product"));
}

// Empty: the flags go together.
std::string UsageError(const MatmulFlags& flags) {
  if (flags.random.empty()) {
    if (flags.a.empty() || flags.b.empty()) {
      return "matmul needs two files, A.npy and B.npy, or --random MxNxK";
    }
    if (flags.output_path.empty() && !flags.check) {
      return "matmul needs -o D.npy for the result (or --check, to check it only)";
    }
  } else if (!flags.a.empty()) {
    return "matmul takes files or --random, not both";
  }
  if (!flags.output_path.empty()) {
    for (const std::string& input : {flags.a, flags.b}) {
      if (!input.empty() && SameFile(input, flags.output_path)) {
        return absl::StrCat("-o ", flags.output_path, " is an operand's file too; name another");
      }
    }
  }
  return "";
}

struct Stage {
  const char* name;
  Nanos time;
};

std::vector<Stage> StagesOf(const MatmulInfo& info) {
  return {{"receive", info.receive},  {"decode", info.decode},      {"queue", info.queue},
          {"copy_in", info.copy_in},  {"kernel", info.kernel_time}, {"verify", info.verify},
          {"copy_out", info.copy_out}};
}

double Ms(Nanos time) { return static_cast<double>(time.count()) * 1e-6; }

struct Product {
  MatrixView a;
  MatrixView b;
  MatrixView d;
  MatmulInfo info;
  std::optional<Proof> proof;

  // Of the whole call, as the caller sees it.
  double call_tflops() const {
    const double flops = 2.0 * static_cast<double>(d.rows) * static_cast<double>(d.cols) *
                         static_cast<double>(a.op_cols());
    const double seconds = static_cast<double>(info.round_trip.count()) * 1e-9;
    return seconds > 0 ? flops / seconds * 1e-12 : 0;
  }
};

std::string ProofLine(const Proof& proof) {
  if (proof.ok) {
    return absl::StrFormat("right: %s; largest error is %.4f of its bound\n", proof.method,
                           proof.worst.max_error_ratio);
  }
  return absl::StrCat("WRONG: ", proof.worst.ToString(), " (", proof.method, ")\n");
}

void PrintProduct(const Product& product, std::ostream& out) {
  const MatmulInfo& info = product.info;
  out << absl::StrFormat("D = %dx%d %s, K = %d, %s\n", product.d.rows, product.d.cols,
                         std::string(DTypeName(product.d.dtype)), product.a.op_cols(), info.kernel);
  out << absl::StrFormat("round trip %.3f ms (%.4f TFLOPS), launch %.4f TFLOPS, %d in its batch, ",
                         Ms(info.round_trip), product.call_tflops(), info.tflops,
                         info.batched_with + 1);
  out << (info.attempts == 1 ? "1 attempt" : absl::StrCat(info.attempts, " attempts")) << "\n";
  for (const Stage& stage : StagesOf(info)) {
    out << absl::StrFormat("%s %.3f ms  ", stage.name, Ms(stage.time));
  }
  out << "\n";
  if (product.proof.has_value()) out << ProofLine(*product.proof);
}

nlohmann::ordered_json ProofJson(const Proof& proof) {
  nlohmann::ordered_json json = {
      {"ok", proof.ok}, {"method", proof.method}, {"max_error_ratio", proof.worst.max_error_ratio}};
  if (!proof.ok) {
    json["worst"] = {{"row", proof.worst.worst_row},
                     {"col", proof.worst.worst_col},
                     {"value", proof.worst.worst_value},
                     {"exact", proof.worst.worst_exact},
                     {"bound", proof.worst.worst_bound}};
  }
  return json;
}

std::string Line(const nlohmann::ordered_json& json) {
  constexpr auto kReplace = nlohmann::ordered_json::error_handler_t::replace;
  return json.dump(-1, ' ', false, kReplace) + "\n";
}

std::string ProductJson(const Product& product, const std::string& server) {
  const MatmulInfo& info = product.info;
  nlohmann::ordered_json json = {{"server", server},
                                 {"ok", !product.proof.has_value() || product.proof->ok},
                                 {"m", product.d.rows},
                                 {"n", product.d.cols},
                                 {"k", product.a.op_cols()},
                                 {"output", std::string(DTypeName(product.d.dtype))},
                                 {"kernel", info.kernel},
                                 {"tflops", info.tflops},
                                 {"call_tflops", product.call_tflops()},
                                 {"batched_with", info.batched_with},
                                 {"attempts", info.attempts},
                                 {"round_trip_ms", Ms(info.round_trip)}};
  for (const Stage& stage : StagesOf(info)) {
    json[absl::StrCat(stage.name, "_ms")] = Ms(stage.time);
  }
  if (product.proof.has_value()) json["check"] = ProofJson(*product.proof);
  return Line(json);
}

absl::StatusOr<Proof> Prove(const MatrixView& a, const MatrixView& b, const MatrixView& d) {
  PoolRunner runner(ProofThreads());
  return ProveProduct(a, b, d, {.seed = FreshSeed()}, runner);
}

ExitCode FailUsage(const Session& session, const absl::Status& status) {
  return session.Fail(ExitCode::kUsage, std::string(status.message()));
}

}  // namespace

ExitCode RunMatmul(const Session& session, const MatmulFlags& flags) {
  const std::string usage = UsageError(flags);
  if (!usage.empty()) return session.Fail(ExitCode::kUsage, usage);
  const absl::StatusOr<Operands> operands = MakeOperands(flags);
  if (!operands.ok()) return FailUsage(session, operands.status());
  NoteRounding(session, *operands);
  const auto client = session.Connect();
  if (!client.ok()) return FailUsage(session, client.status());

  const DType output = flags.output == "fp32" ? DType::kFp32 : DType::kBf16;
  Matrix d;
  Product product{.a = operands->a.view, .b = operands->b.view};
  absl::StatusOr<MatmulInfo> info =
      (*client)->Matmul(product.a, product.b, output, d, session.call_options());
  if (!info.ok()) return session.FailCall(**client, info.status());
  product.info = *std::move(info);
  product.d = d.view();
  if (flags.check) {
    absl::StatusOr<Proof> proof = Prove(product.a, product.b, product.d);
    if (!proof.ok()) return session.Fail(ExitCode::kFailed, std::string(proof.status().message()));
    product.proof = *std::move(proof);
  }
  const bool right = !product.proof.has_value() || product.proof->ok;
  // A wrong D is not left behind under the name of a right one.
  if (right && !flags.output_path.empty()) {
    const absl::Status written = WriteNpy(flags.output_path, product.d);
    if (!written.ok()) return FailUsage(session, written);
  }
  if (session.flags().json) {
    session.out() << ProductJson(product, session.flags().server);
  } else {
    PrintProduct(product, session.out());
  }
  return right ? ExitCode::kRight : ExitCode::kWrong;
}

ExitCode RunCheck(const Session& session, const CheckFlags& flags) {
  const absl::StatusOr<Operands> operands = ReadOperands(flags);
  if (!operands.ok()) return FailUsage(session, operands.status());
  const absl::StatusOr<Matrix> d = ReadResult(flags.d, flags.u2_is_bf16);
  if (!d.ok()) return FailUsage(session, d.status());
  NoteRounding(session, *operands);
  const absl::StatusOr<Proof> proof = Prove(operands->a.view, operands->b.view, d->view());
  if (!proof.ok()) return FailUsage(session, proof.status());
  session.out() << (session.flags().json ? Line(ProofJson(*proof)) : ProofLine(*proof));
  return proof->ok ? ExitCode::kRight : ExitCode::kWrong;
}

}  // namespace tcgemm::client
