// What a request says of its epilogue beside C and the bias, which are operands; and what becomes
// of it.
#ifndef TCGEMM_SERVER_RPC_EPILOGUE_FIELDS_H_
#define TCGEMM_SERVER_RPC_EPILOGUE_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "matrix/epilogue.h"

namespace tcgemm {

struct OperandFields;
struct RequestFields;

// As it came: nothing checked yet.
struct EpilogueFields {
  std::optional<float> alpha;
  std::optional<float> beta;
  int32_t activation = 0;
};

// An epilogue that can be served: what to copy where, in the request's lease.
struct EpilogueLayout {
  // C and the bias as RequestLayout's operands: resident ones as they lie, others with their pitch
  // in the lease (a column of bias is dense) and data null. No C where beta is 0.
  Epilogue steps;
  size_t c_offset = 0;
  size_t bias_offset = 0;
  // Elements from row to row in the message, and where they start there.
  int64_t c_source_ld = 0;
  int64_t bias_source_ld = 0;
  size_t c_position = 0;
  size_t bias_position = 0;

  bool c_in_lease() const { return steps.reads_c() && steps.c.data == nullptr; }
  bool bias_in_lease() const { return steps.has_bias() && steps.bias.data == nullptr; }
};

// Checks alpha, beta, c, bias and activation for a D of this shape; offsets are left to the caller.
// A C is checked also where beta is 0 and nobody reads it. INVALID_ARGUMENT, naming the field, its
// value and what it must be; UNIMPLEMENTED for types and sources that are not built.
absl::StatusOr<EpilogueLayout> ValidateEpilogueFields(const RequestFields& fields,
                                                      const EpilogueShape& d,
                                                      int64_t pitch_alignment);

// Of matmul_validate.cc: what holds for every operand, here of bf16 or fp32, and its view.
absl::Status CheckAddend(const std::string& name, const OperandFields& operand);
MatrixView AddendView(const OperandFields& operand, int64_t pitch_alignment);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_EPILOGUE_FIELDS_H_
