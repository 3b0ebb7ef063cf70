// The checks of a MatmulRequest: everything that can be wrong with it, each with words that name
// the field, its value and the limit.
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/rpc/matmul_wire.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {
namespace {

constexpr size_t kMatrixAlignment = 256;
// A stream's: its matrices are never whole in one place.
constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

absl::Status Unbuilt(const std::string& what) {
  return absl::UnimplementedError(absl::StrCat(what, " is declared, not built yet"));
}

// op(X) in words: "3x5 (stored 5x3, transposed)".
std::string Describe(const OperandFields& operand) {
  if (!operand.transposed) return absl::StrCat(operand.rows, "x", operand.cols);
  return absl::StrCat(operand.cols, "x", operand.rows, " (stored ", operand.rows, "x", operand.cols,
                      ", transposed)");
}

absl::Status CheckDimension(const std::string& field, int64_t value) {
  if (value >= 1 && value <= kMaxDimension) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", must be from 1 to ", kMaxDimension));
}

// Types of the factors; what is added may also be fp32.
enum class OperandTypes { kBf16, kBf16OrFp32 };

absl::Status CheckOperandType(const std::string& name, int32_t dtype, OperandTypes types) {
  const bool fp32_too = types == OperandTypes::kBf16OrFp32;
  const char* const accepted = fp32_too ? "BF16 (1) or FP32 (2)" : "BF16 (1)";
  if (!v1::DType_IsValid(dtype) || dtype == v1::DTYPE_UNSPECIFIED) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".dtype is ", dtype, ", must be a declared type: ", accepted));
  }
  if (dtype == v1::BF16 || (fp32_too && dtype == v1::FP32)) return absl::OkStatus();
  return Unbuilt(absl::StrCat(name, ".dtype ", v1::DType_Name(static_cast<v1::DType>(dtype)),
                              fp32_too ? " (use BF16 or FP32)" : " (use BF16)"));
}

// Of an operand whose type was checked.
DType TypeOf(const OperandFields& operand) {
  return operand.dtype == v1::FP32 ? DType::kFp32 : DType::kBf16;
}

absl::Status CheckSource(const std::string& name, const OperandFields& operand,
                         OperandTypes types) {
  switch (operand.source) {
    case OperandFields::Source::kInline:
    case OperandFields::Source::kStreamed:
      return absl::OkStatus();
    case OperandFields::Source::kNone:
      if (types == OperandTypes::kBf16OrFp32) {
        return absl::InvalidArgumentError(absl::StrCat(name, " has no source: set ", name,
                                                       ".inline to its elements or ", name,
                                                       ".handle to a resident matrix"));
      }
      return absl::InvalidArgumentError(
          absl::StrCat(name, " has no source: set ", name, ".inline to its elements, ", name,
                       ".handle to a resident matrix or ", name, ".region to shared memory"));
    case OperandFields::Source::kHandle:
      if (operand.resident.data != nullptr) return absl::OkStatus();
      return absl::InternalError(name + ".handle was not looked up");
    case OperandFields::Source::kRegion:
      if (operand.region.data != nullptr) return absl::OkStatus();
      return Unbuilt(name + ".region");  // RegionOperands does not look for it
  }
  return absl::InternalError("unknown source");
}

std::string LooksLike(size_t actual, size_t dense) {
  if (actual == 2 * dense) return "; that looks like fp32: send bf16";
  if (actual == 4 * dense) return "; that looks like fp64: send bf16";
  return "";
}

// `ld` with its default filled in. Dimensions are below 2^31: products of two by 4 bytes are below
// 2^64, beyond int64.
absl::Status CheckByteCount(const std::string& name, const OperandFields& operand, int64_t ld) {
  const DType dtype = TypeOf(operand);
  const uint64_t size = DTypeSize(dtype);
  const auto padded = static_cast<uint64_t>(operand.rows * ld) * size;
  const uint64_t exact = static_cast<uint64_t>((operand.rows - 1) * ld + operand.cols) * size;
  const uint64_t actual = operand.inline_bytes;
  if (actual == exact || actual == padded) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, ".inline has ", actual, " bytes, expected ", exact,
      padded == exact ? "" : absl::StrCat(" or ", padded), " for ", operand.rows, "x", operand.cols,
      " ", std::string(DTypeName(dtype)), " with ld ", ld,
      dtype == DType::kBf16
          ? LooksLike(operand.inline_bytes, static_cast<size_t>(operand.rows * operand.cols * size))
          : ""));
}

// Of a region; its data is set once its range is known to be there.
MatrixView RegionView(const OperandFields& operand) {
  const int64_t ld = operand.ld == 0 ? operand.cols : operand.ld;
  return {operand.region.data, operand.rows, operand.cols, ld, TypeOf(operand), operand.transposed};
}

// From the first element to the last. Below 2^62, as dimensions are below 2^31.
int64_t SpanElements(const MatrixView& view) { return (view.rows - 1) * view.ld + view.cols; }

struct RegionRange {
  int64_t elements = 0;  // ≥ 1
  DType dtype = DType::kBf16;
};

absl::Status CheckRegionRange(const std::string& field, const RegionFields& region,
                              const RegionRange& range) {
  const auto size = static_cast<int64_t>(DTypeSize(range.dtype));
  const auto bytes = static_cast<int64_t>(region.bytes);
  if (region.offset < 0 || region.offset % size != 0) {
    return absl::InvalidArgumentError(absl::StrCat(field, ".offset is ", region.offset,
                                                   ", must be a multiple of ", size,
                                                   " (the element's bytes) from 0 on"));
  }
  // Divided, since no multiplication or sum of what a client says may overflow.
  if (region.offset < bytes && range.elements <= (bytes - region.offset) / size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", range.elements, " elements of ", size, " bytes from offset ",
                   region.offset, " on do not lie within the region's ", bytes, " bytes"));
}

absl::Status CheckOperand(const std::string& name, const OperandFields& operand,
                          OperandTypes types = OperandTypes::kBf16) {
  if (!operand.present) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is missing"));
  }
  TCGEMM_RETURN_IF_ERROR(CheckDimension(name + ".rows", operand.rows));
  TCGEMM_RETURN_IF_ERROR(CheckDimension(name + ".cols", operand.cols));
  if (operand.ld != 0 && (operand.ld < operand.cols || operand.ld > kMaxDimension)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".ld is ", operand.ld,
                     ", must be 0 (= cols) or from cols = ", operand.cols, " to ", kMaxDimension));
  }
  TCGEMM_RETURN_IF_ERROR(CheckOperandType(name, operand.dtype, types));
  TCGEMM_RETURN_IF_ERROR(CheckSource(name, operand, types));
  if (operand.source == OperandFields::Source::kRegion) {
    const MatrixView view = RegionView(operand);
    return CheckRegionRange(name + ".region", operand.region, {SpanElements(view), view.dtype});
  }
  if (operand.source != OperandFields::Source::kInline) return absl::OkStatus();
  return CheckByteCount(name, operand, operand.ld == 0 ? operand.cols : operand.ld);
}

absl::StatusOr<DType> CheckOutputType(int32_t dtype) {
  switch (dtype) {
    case v1::DTYPE_UNSPECIFIED:
    case v1::BF16:
      return DType::kBf16;
    case v1::FP32:
      return DType::kFp32;
    default:
      break;
  }
  if (v1::DType_IsValid(dtype)) {
    return Unbuilt(absl::StrCat("output_dtype ", v1::DType_Name(static_cast<v1::DType>(dtype))));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("output_dtype is ", dtype, ", must be BF16 (1) or FP32 (2)"));
}

// An enum of which only `built` values (and 0) are served.
absl::Status CheckChoice(const std::string& field, int32_t value, bool declared, int32_t built) {
  if (value == 0 || value == built) return absl::OkStatus();
  if (declared) return Unbuilt(absl::StrCat(field, " = ", value));
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", which is not declared"));
}

absl::Status CheckOutput(const OutputFields& output) {
  if (output.present && output.target == OutputFields::Target::kNone) {
    return absl::InvalidArgumentError(
        "output has no target: set output.handle (empty: a random one) or output.region, or leave "
        "output out");
  }
  if (output.ttl_seconds >= 0 && output.ttl_seconds <= kMaxTtlSeconds) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("output.ttl_seconds is ", output.ttl_seconds,
                                                 ", must be from 0 to ", kMaxTtlSeconds));
}

absl::Status CheckExtras(const RequestFields& fields) {
  TCGEMM_RETURN_IF_ERROR(CheckChoice("verify", fields.verify,
                                     v1::Verification_IsValid(fields.verify), v1::VERIFY_NONE));
  if (!v1::Reduction_IsValid(fields.reduction)) {
    return absl::InvalidArgumentError(
        absl::StrCat("reduction is ", fields.reduction, ", which is not declared"));
  }
  if (fields.priority < 0 || fields.priority > 9) {
    return absl::InvalidArgumentError(
        absl::StrCat("priority is ", fields.priority, ", must be from 0 to 9"));
  }
  if (fields.priority != 0) return Unbuilt(absl::StrCat("priority = ", fields.priority));
  TCGEMM_RETURN_IF_ERROR(CheckOutput(fields.output));
  return absl::OkStatus();
}

MatrixView ViewOf(const OperandFields& operand, int64_t pitch_alignment) {
  if (operand.source == OperandFields::Source::kHandle) {
    MatrixView view = operand.resident;
    view.transposed = operand.transposed;
    return view;
  }
  if (operand.source == OperandFields::Source::kRegion) {
    MatrixView view = RegionView(operand);
    view.data = operand.region.data + operand.region.offset;
    return view;
  }
  const int64_t pitch = (operand.cols + pitch_alignment - 1) / pitch_alignment * pitch_alignment;
  return {nullptr, operand.rows, operand.cols, pitch, TypeOf(operand), operand.transposed};
}

// Bytes of a matrix in the lease, rounded up; as a double too, which cannot overflow.
template <typename View>
double BytesAsDouble(const View& view) {
  return static_cast<double>(view.rows) * static_cast<double>(view.ld) *
         static_cast<double>(DTypeSize(view.dtype));
}

template <typename View>
size_t Placed(const View& view) {
  const size_t bytes =
      static_cast<size_t>(view.rows) * static_cast<size_t>(view.ld) * DTypeSize(view.dtype);
  return (bytes + kMatrixAlignment - 1) / kMatrixAlignment * kMatrixAlignment;
}

absl::Status PlaceMatrices(RequestLayout& layout, size_t max_lease_bytes) {
  const bool a = layout.a.data == nullptr;
  const bool b = layout.b.data == nullptr;
  const bool d = layout.d_in_lease();
  EpilogueLayout& epilogue = layout.epilogue;
  const bool c = epilogue.c_in_lease();
  const bool bias = epilogue.bias_in_lease();
  const double estimate = (a ? BytesAsDouble(layout.a) : 0) + (b ? BytesAsDouble(layout.b) : 0) +
                          (c ? BytesAsDouble(epilogue.steps.c) : 0) +
                          (bias ? BytesAsDouble(epilogue.steps.bias) : 0) +
                          (d ? BytesAsDouble(layout.d) : 0);
  // Near the limit the exact sum decides; far beyond it, where that would overflow, this does.
  if (estimate < 0x1p62) {
    layout.a_offset = 0;
    layout.b_offset = a ? Placed(layout.a) : 0;
    epilogue.c_offset = layout.b_offset + (b ? Placed(layout.b) : 0);
    epilogue.bias_offset = epilogue.c_offset + (c ? Placed(epilogue.steps.c) : 0);
    layout.d_offset = epilogue.bias_offset + (bias ? Placed(epilogue.steps.bias) : 0);
    layout.lease_bytes = layout.d_offset + (d ? Placed(layout.d) : 0);
    if (layout.lease_bytes <= max_lease_bytes) return absl::OkStatus();
  }
  if (max_lease_bytes == kNoLimit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("A, B and D of ", layout.d.rows, "x", layout.d.cols, " need about ", estimate,
                     " bytes together, more than can be addressed"));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(c || bias ? "A, B, C, bias and D of " : "A, B and D of ", layout.d.rows, "x",
                   layout.d.cols, " need about ", estimate, " bytes together, this server has ",
                   max_lease_bytes, " (--pinned-bytes); MatmulStream takes any size"));
}

// D overlaps an operand of the same region? Other regions, and what lies elsewhere, never do.
absl::Status CheckOverlap(const std::string& name, const OperandFields& operand,
                          const RequestFields& fields, const MutableMatrixView& d) {
  const bool same = operand.source == OperandFields::Source::kRegion &&
                    operand.region.data == fields.output.region.data;
  if (!same) return absl::OkStatus();
  // All of it lies within the region: no sum overflows.
  const int64_t begin = operand.region.offset;
  const int64_t end =
      begin + SpanElements(RegionView(operand)) * static_cast<int64_t>(DTypeSize(DType::kBf16));
  const int64_t d_begin = fields.output.region.offset;
  const int64_t d_end = d_begin + d.rows * d.cols * static_cast<int64_t>(DTypeSize(d.dtype));
  if (end <= d_begin || d_end <= begin) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("output.region: D's bytes ", d_begin, " to ",
                                                 d_end, " overlap those of ", name, ", ", begin,
                                                 " to ", end, ", in the same region"));
}

absl::Status PlaceResult(const RequestFields& fields, RequestLayout& layout) {
  layout.d_is_resident = fields.output.target == OutputFields::Target::kHandle;
  layout.d_in_region = fields.output.target == OutputFields::Target::kRegion;
  if (!layout.d_in_region) return absl::OkStatus();
  const RegionFields& region = fields.output.region;
  if (region.data == nullptr) return Unbuilt("output.region");
  TCGEMM_RETURN_IF_ERROR(
      CheckRegionRange("output.region", region, {layout.d.rows * layout.d.cols, layout.d.dtype}));
  TCGEMM_RETURN_IF_ERROR(CheckOverlap("a", fields.a, fields, layout.d));
  TCGEMM_RETURN_IF_ERROR(CheckOverlap("b", fields.b, fields, layout.d));
  layout.d.data = region.data + region.offset;
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckResponseSize(const RequestLayout& layout) {
  if (!layout.d_in_lease() || layout.d.span_bytes() <= kMaxResponseBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "d has ", layout.d.span_bytes(), " bytes, one message holds at most ", kMaxResponseBytes,
      ": ask for it with MatmulStream, or leave it on the server (output.handle)"));
}

absl::Status CheckAddend(const std::string& name, const OperandFields& operand) {
  return CheckOperand(name, operand, OperandTypes::kBf16OrFp32);
}

MatrixView AddendView(const OperandFields& operand, int64_t pitch_alignment) {
  return ViewOf(operand, pitch_alignment);
}

absl::StatusOr<RequestLayout> ValidateRequest(const RequestFields& fields, int64_t pitch_alignment,
                                              size_t max_lease_bytes) {
  TCGEMM_ASSIGN_OR_RETURN(const DType output, CheckOutputType(fields.output_dtype));
  TCGEMM_RETURN_IF_ERROR(CheckOperand("a", fields.a));
  TCGEMM_RETURN_IF_ERROR(CheckOperand("b", fields.b));
  RequestLayout layout;
  layout.a = ViewOf(fields.a, pitch_alignment);
  layout.b = ViewOf(fields.b, pitch_alignment);
  if (layout.a.op_cols() != layout.b.op_rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat("inner dimensions differ: op(a) is ", Describe(fields.a), ", op(b) is ",
                     Describe(fields.b), "; op(a)'s columns must equal op(b)'s rows"));
  }
  TCGEMM_RETURN_IF_ERROR(CheckExtras(fields));
  layout.fastest = fields.reduction == v1::FASTEST;
  const int64_t m = layout.a.op_rows();
  const int64_t n = layout.b.op_cols();
  layout.d = {nullptr, m, n, n, output, false};
  TCGEMM_ASSIGN_OR_RETURN(layout.epilogue,
                          ValidateEpilogueFields(fields, {.m = m, .n = n}, pitch_alignment));
  TCGEMM_RETURN_IF_ERROR(PlaceResult(fields, layout));
  layout.a_source_ld = fields.a.ld == 0 ? fields.a.cols : fields.a.ld;
  layout.b_source_ld = fields.b.ld == 0 ? fields.b.cols : fields.b.ld;
  layout.a_position = fields.a.inline_position;
  layout.b_position = fields.b.inline_position;
  TCGEMM_RETURN_IF_ERROR(PlaceMatrices(layout, max_lease_bytes));
  return layout;
}

}  // namespace tcgemm
