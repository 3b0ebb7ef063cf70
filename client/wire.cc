#include "client/wire.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/wire_reader.h"

namespace tcgemm::client {
namespace {

constexpr int64_t kMaxDimension = INT32_MAX;

// Up to this many bytes of gap per four of row travel along: moving them costs less than a copy.
constexpr int64_t kGapShare = 4;

// Field numbers of proto/tcgemm/v1/matmul.proto.
enum OperandField : uint32_t { kRows = 1, kCols = 2, kLd = 3, kDtype = 4, kTransposed = 5 };
constexpr uint32_t kOperandInline = 15;
constexpr int64_t kFastest = 2;  // of Reduction
enum RequestField : uint32_t {
  kA = 1,
  kB = 2,
  kOutputDtype = 3,
  kC = 4,
  kAlpha = 5,
  kBeta = 6,
  kBias = 7,
  kActivation = 8,
  kReduction = 11,
};
enum ResponseField : uint32_t {
  kDRows = 1,
  kDCols = 2,
  kDDtype = 3,
  kTimings = 4,
  kKernel = 5,
  kTflops = 6,
  kBatchedWith = 7,
  kD = 15,
};

void AppendVarint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

// As proto3 has it, a zero is not written.
void AppendVarintField(std::string& out, uint32_t field, int64_t value) {
  if (value == 0) return;
  AppendVarint(out, WireTag(field, WireType::kVarint));
  AppendVarint(out, static_cast<uint64_t>(value));
}

void AppendFloatField(std::string& out, uint32_t field, float value) {
  AppendVarint(out, WireTag(field, WireType::kFixed32));
  const auto bits = std::bit_cast<uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(bits >> shift));
}

void AppendBytesHeader(std::string& out, uint32_t field, size_t length) {
  AppendVarint(out, WireTag(field, WireType::kBytes));
  AppendVarint(out, length);
}

bool IsDense(const MatrixView& matrix) { return matrix.ld == matrix.cols || matrix.rows == 1; }

bool TravelsAsStored(const MatrixView& matrix) {
  return IsDense(matrix) || matrix.ld - matrix.cols <= matrix.cols / kGapShare;
}

// All but the type.
absl::Status CheckView(const char* name, const MatrixView& matrix) {
  if (matrix.rows < 1 || matrix.cols < 1 || matrix.rows > kMaxDimension ||
      matrix.cols > kMaxDimension) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", matrix.rows, "x", matrix.cols,
                                                   "; dimensions must be 1 to ", kMaxDimension));
  }
  if (matrix.ld < matrix.cols) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".ld is ", matrix.ld, "; it must be >= cols, ", matrix.cols));
  }
  if (matrix.data == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, ".data is null"));
  }
  return absl::OkStatus();
}

absl::Status CheckOperand(const char* name, const MatrixView& matrix) {
  if (matrix.dtype != DType::kBf16) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is ", std::string(DTypeName(matrix.dtype)), "; operands must be bf16"));
  }
  return CheckView(name, matrix);
}

// Bytes of the matrix in the message. With dimensions below 2^31 and ld at most 5/4 of cols, no
// product here overflows.
size_t InlineBytes(const MatrixView& matrix) {
  return TravelsAsStored(matrix)
             ? matrix.span_bytes()
             : static_cast<size_t>(matrix.rows * matrix.cols) * DTypeSize(matrix.dtype);
}

absl::Status CheckEpilogue(const MatrixView& a, const MatrixView& b, const Epilogue& epilogue) {
  TCGEMM_RETURN_IF_ERROR(ValidateEpilogue(epilogue, {.m = a.op_rows(), .n = b.op_cols()}));
  if (epilogue.reads_c()) TCGEMM_RETURN_IF_ERROR(CheckView("C", epilogue.c));
  if (epilogue.has_bias()) TCGEMM_RETURN_IF_ERROR(CheckView("bias", epilogue.bias));
  return absl::OkStatus();
}

// Of operands that CheckProduct accepts.
absl::Status CheckSize(const MatrixView& a, const MatrixView& b, const Epilogue& epilogue) {
  constexpr size_t kHeaders = 512;
  const size_t c_bytes = epilogue.reads_c() ? InlineBytes(epilogue.c) : 0;
  const size_t bias_bytes = epilogue.has_bias() ? InlineBytes(epilogue.bias) : 0;
  // Each alone first: a sum may overflow.
  size_t bytes = kHeaders;
  for (const size_t part : {InlineBytes(a), InlineBytes(b), c_bytes, bias_bytes}) {
    if (part > kMaxMessageBytes || bytes + part > kMaxMessageBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("A has ", InlineBytes(a), " bytes and B ", InlineBytes(b),
                       c_bytes > 0 ? absl::StrCat(", C ", c_bytes) : "",
                       bias_bytes > 0 ? absl::StrCat(", bias ", bias_bytes) : "",
                       "; one message carries at most ", kMaxMessageBytes,
                       epilogue.is_default() ? ": stream it (MatmulStream, StreamClient)"
                                             : ": multiply row panels of A one at a time"));
    }
    bytes += part;
  }
  return absl::OkStatus();
}

// All of a MatmulRequest's field for one operand but the matrix itself.
std::string OperandHeader(uint32_t field, const MatrixView& matrix) {
  std::string fields;
  AppendVarintField(fields, kRows, matrix.rows);
  AppendVarintField(fields, kCols, matrix.cols);
  const bool has_gaps = TravelsAsStored(matrix) && !IsDense(matrix);
  AppendVarintField(fields, kLd, has_gaps ? matrix.ld : 0);
  AppendVarintField(fields, kDtype, static_cast<int64_t>(matrix.dtype));
  AppendVarintField(fields, kTransposed, matrix.transposed ? 1 : 0);
  AppendBytesHeader(fields, kOperandInline, InlineBytes(matrix));
  std::string header;
  AppendBytesHeader(header, field, fields.size() + InlineBytes(matrix));
  return header + fields;
}

// The numbers of matmul.proto's DType are those of tcgemm::DType.
std::string NameOfDType(uint64_t number) {
  if (number >= 1 && number <= 4) return std::string(DTypeName(static_cast<DType>(number)));
  return absl::StrCat("type ", number);
}

// False when it does not parse.
bool ReadTimings(WireReader reader, MatmulInfo& info) {
  Nanos* const stages[] = {&info.receive,     &info.decode, &info.queue,   &info.copy_in,
                           &info.kernel_time, &info.verify, &info.copy_out};
  while (const uint32_t tag = reader.ReadTag()) {
    const uint32_t field = tag >> 3;
    if (tag == WireTag(field, WireType::kVarint) && field <= std::size(stages)) {
      *stages[field - 1] = Nanos(static_cast<int64_t>(reader.ReadVarint()));
    } else {
      reader.Skip(tag);
    }
  }
  return reader.ok();
}

struct ResponseFields {
  MatmulInfo info;
  uint64_t rows = 0;
  uint64_t cols = 0;
  uint64_t dtype = 0;
  WireReader d;
};

absl::StatusOr<ResponseFields> ReadFields(WireReader reader) {
  ResponseFields fields;
  bool ok = true;
  while (const uint32_t tag = reader.ReadTag()) {
    switch (tag) {
      case WireTag(kDRows, WireType::kVarint):
        fields.rows = reader.ReadVarint();
        break;
      case WireTag(kDCols, WireType::kVarint):
        fields.cols = reader.ReadVarint();
        break;
      case WireTag(kDDtype, WireType::kVarint):
        fields.dtype = reader.ReadVarint();
        break;
      case WireTag(kTimings, WireType::kBytes):
        ok = ReadTimings(reader.ReadMessage(), fields.info) && ok;
        break;
      case WireTag(kKernel, WireType::kBytes):
        fields.info.kernel = reader.ReadMessage().ReadRest();
        break;
      case WireTag(kTflops, WireType::kFixed64):
        fields.info.tflops = std::bit_cast<double>(reader.ReadFixed64());
        break;
      case WireTag(kBatchedWith, WireType::kVarint):
        fields.info.batched_with = static_cast<int32_t>(reader.ReadVarint());
        break;
      case WireTag(kD, WireType::kBytes):
        fields.d = reader.ReadMessage();
        break;
      default:
        reader.Skip(tag);
    }
  }
  if (!ok || !reader.ok()) return absl::DataLossError("the response is not a MatmulResponse");
  return fields;
}

}  // namespace

absl::Status CheckProduct(const MatrixView& a, const MatrixView& b, DType output) {
  TCGEMM_RETURN_IF_ERROR(CheckOperand("A", a));
  TCGEMM_RETURN_IF_ERROR(CheckOperand("B", b));
  if (a.op_cols() != b.op_rows()) {
    return absl::InvalidArgumentError(absl::StrCat("inner dimensions differ: op(A) is ",
                                                   a.op_rows(), "x", a.op_cols(), ", op(B) is ",
                                                   b.op_rows(), "x", b.op_cols()));
  }
  if (output != DType::kBf16 && output != DType::kFp32) {
    return absl::InvalidArgumentError(
        absl::StrCat("output is ", std::string(DTypeName(output)), "; it must be bf16 or fp32"));
  }
  return absl::OkStatus();
}

void EncodedRequest::AddHeader(std::string header) {
  headers_.push_back(std::move(header));
  pieces_.push_back(headers_.back());
  bytes_ += headers_.back().size();
}

void EncodedRequest::AddOperand(const MatrixView& matrix) {
  MatrixView sent = matrix;
  if (!TravelsAsStored(matrix)) {
    Matrix& dense = gathered_.emplace_back(matrix.rows, matrix.cols, matrix.dtype);
    const size_t size = DTypeSize(matrix.dtype);
    for (int64_t row = 0; row < matrix.rows; ++row) {
      std::memcpy(dense.data<char>() + row * matrix.cols * size,
                  static_cast<const char*>(matrix.data) + row * matrix.ld * size,
                  matrix.cols * size);
    }
    sent = dense.view();
  }
  pieces_.emplace_back(static_cast<const char*>(sent.data), sent.span_bytes());
  bytes_ += sent.span_bytes();
}

absl::StatusOr<EncodedRequest> EncodeMatmulRequest(const MatrixView& a, const MatrixView& b,
                                                   DType output, const Epilogue& epilogue,
                                                   bool fastest) {
  TCGEMM_RETURN_IF_ERROR(CheckProduct(a, b, output));
  TCGEMM_RETURN_IF_ERROR(CheckEpilogue(a, b, epilogue));
  TCGEMM_RETURN_IF_ERROR(CheckSize(a, b, epilogue));
  EncodedRequest request;
  // The pieces point into both: neither may grow past its first allocation.
  request.headers_.reserve(5);
  request.gathered_.reserve(4);
  request.AddHeader(OperandHeader(kA, a));
  request.AddOperand(a);
  request.AddHeader(OperandHeader(kB, b));
  request.AddOperand(b);
  // Scalars between two operands go into the header of the second.
  std::string scalars;
  AppendVarintField(scalars, kOutputDtype, static_cast<int64_t>(output));
  if (epilogue.reads_c()) {
    request.AddHeader(scalars + OperandHeader(kC, epilogue.c));
    request.AddOperand(epilogue.c);
    scalars.clear();
  }
  if (epilogue.alpha != 1) AppendFloatField(scalars, kAlpha, epilogue.alpha);
  if (epilogue.reads_c()) AppendFloatField(scalars, kBeta, epilogue.beta);
  if (epilogue.has_bias()) {
    request.AddHeader(scalars + OperandHeader(kBias, epilogue.bias));
    request.AddOperand(epilogue.bias);
    scalars.clear();
  }
  AppendVarintField(scalars, kActivation, static_cast<int64_t>(epilogue.activation));
  if (fastest) AppendVarintField(scalars, kReduction, kFastest);
  if (!scalars.empty()) request.AddHeader(std::move(scalars));
  return request;
}

absl::StatusOr<MatmulInfo> DecodeMatmulResponse(absl::Span<const absl::string_view> slices,
                                                const ExpectedProduct& expected, Matrix& d) {
  TCGEMM_ASSIGN_OR_RETURN(ResponseFields fields, ReadFields(WireReader(slices)));
  if (fields.rows != static_cast<uint64_t>(expected.rows) ||
      fields.cols != static_cast<uint64_t>(expected.cols) ||
      fields.dtype != static_cast<uint64_t>(expected.dtype)) {
    return absl::DataLossError(absl::StrCat("the response is ", fields.rows, "x", fields.cols, " ",
                                            NameOfDType(fields.dtype), "; the product is ",
                                            expected.rows, "x", expected.cols, " ",
                                            std::string(DTypeName(expected.dtype))));
  }
  const uint64_t bytes = fields.rows * fields.cols * DTypeSize(expected.dtype);
  if (fields.d.remaining() != bytes) {
    return absl::DataLossError(absl::StrCat(
        "the response holds ", fields.d.remaining(), " bytes of D; a ", fields.rows, "x",
        fields.cols, " ", std::string(DTypeName(expected.dtype)), " D has ", bytes));
  }
  d.Reshape(expected.rows, expected.cols, expected.dtype);
  fields.d.CopyTo(d.data<char>());
  return std::move(fields.info);
}

std::string EncodeHealthCheckRequest(absl::string_view service) {
  std::string out;
  if (service.empty()) return out;
  AppendBytesHeader(out, 1, service.size());
  return absl::StrCat(out, service);
}

absl::StatusOr<Health> DecodeHealthCheckResponse(absl::Span<const absl::string_view> slices) {
  uint64_t status = 0;
  WireReader reader(slices);
  while (const uint32_t tag = reader.ReadTag()) {
    if (tag == WireTag(1, WireType::kVarint)) {
      status = reader.ReadVarint();
    } else {
      reader.Skip(tag);
    }
  }
  if (!reader.ok()) return absl::DataLossError("the response is not a HealthCheckResponse");
  // HealthCheckResponse.ServingStatus: UNKNOWN 0, SERVING 1, NOT_SERVING 2, SERVICE_UNKNOWN 3.
  if (status == 1) return Health::kServing;
  return status == 2 ? Health::kNotServing : Health::kUnknown;
}

}  // namespace tcgemm::client
