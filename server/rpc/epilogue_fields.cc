#include "server/rpc/epilogue_fields.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/rpc/matmul_wire.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {
namespace {

absl::Status Unbuilt(const std::string& what) {
  return absl::UnimplementedError(absl::StrCat(what, " is declared, not built yet"));
}

absl::Status CheckOperandFields(const std::string& name, const OperandFields& operand) {
  if (operand.source == OperandFields::Source::kRegion) return Unbuilt(name + ".region");
  TCGEMM_RETURN_IF_ERROR(CheckAddend(name, operand));
  if (!operand.transposed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ".transposed is true, must be false: ", name, " is stored as D is"));
}

absl::Status CheckC(const RequestFields& fields, const EpilogueShape& d, float beta) {
  if (!fields.c.present) {
    if (beta == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("beta is ", beta, ", but c is missing: set c, ", d.m, "x", d.n));
  }
  TCGEMM_RETURN_IF_ERROR(CheckOperandFields("c", fields.c));
  if (fields.c.rows == d.m && fields.c.cols == d.n) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("c is ", fields.c.rows, "x", fields.c.cols,
                                                 ", D is ", d.m, "x", d.n, "; they must be equal"));
}

// What is wrong whether it is built or not.
absl::Status CheckScalars(const EpilogueFields& given) {
  if (!v1::Activation_IsValid(given.activation)) {
    return absl::InvalidArgumentError(
        absl::StrCat("activation is ", given.activation,
                     ", which is not declared; RELU (1), GELU (2) and "
                     "SILU (3) are"));
  }
  return ValidateEpilogue({.alpha = given.alpha.value_or(1.0f), .beta = given.beta.value_or(0.0f)},
                          {});
}

int64_t SourceLd(const OperandFields& operand) {
  return operand.ld == 0 ? operand.cols : operand.ld;
}

}  // namespace

absl::StatusOr<EpilogueLayout> ValidateEpilogueFields(const RequestFields& fields,
                                                      const EpilogueShape& d,
                                                      int64_t pitch_alignment) {
  const EpilogueFields& given = fields.epilogue;
  TCGEMM_RETURN_IF_ERROR(CheckScalars(given));
  EpilogueLayout layout;
  Epilogue& steps = layout.steps;
  steps.alpha = given.alpha.value_or(1.0f);
  steps.beta = given.beta.value_or(0.0f);
  steps.activation = static_cast<Activation>(given.activation);
  TCGEMM_RETURN_IF_ERROR(CheckC(fields, d, steps.beta));
  if (steps.reads_c()) {
    steps.c = AddendView(fields.c, pitch_alignment);
    layout.c_source_ld = SourceLd(fields.c);
    layout.c_position = fields.c.inline_position;
  }
  if (fields.bias.present) {
    TCGEMM_RETURN_IF_ERROR(CheckOperandFields("bias", fields.bias));
    const bool column = fields.bias.cols == 1;
    steps.bias = AddendView(fields.bias, column ? 1 : pitch_alignment);
    layout.bias_source_ld = SourceLd(fields.bias);
    layout.bias_position = fields.bias.inline_position;
  }
  TCGEMM_RETURN_IF_ERROR(ValidateEpilogue(steps, d));
  return layout;
}

}  // namespace tcgemm
