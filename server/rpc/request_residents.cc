#include "server/rpc/request_residents.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {
namespace {

absl::Status InField(const std::string& field, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(field, ": ", std::string(status.message())));
}

// `given` is 0 when the request left it out.
absl::Status CheckGiven(const std::string& field, int64_t given, int64_t actual) {
  if (given == 0 || given == actual) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, " is ", given, ", but the resident matrix has ", actual, " (or leave it out)"));
}

}  // namespace

absl::Status RequestResidents::Find(RequestFields& fields) {
  TCGEMM_RETURN_IF_ERROR(FindOperand("a", fields.a, residents_.a));
  TCGEMM_RETURN_IF_ERROR(FindOperand("b", fields.b, residents_.b));
  TCGEMM_RETURN_IF_ERROR(FindOperand("c", fields.c, residents_.c));
  return FindOperand("bias", fields.bias, residents_.bias);
}

absl::Status RequestResidents::FindOperand(const std::string& name, OperandFields& operand,
                                           ResidentRef& found) {
  if (operand.source != OperandFields::Source::kHandle) return absl::OkStatus();
  absl::StatusOr<ResidentRef> matrix = store_->Find(caller_, operand.handle);
  if (!matrix.ok()) return InField(name + ".handle", matrix.status());
  const MatrixView& view = (*matrix)->view();
  if (!(*matrix)->complete()) {
    size_t present = 0;
    for (const ByteRange& range : (*matrix)->present()) present += range.size();
    return absl::FailedPreconditionError(
        absl::StrCat(name, ".handle: of matrix '", operand.handle, "' only ", present, " of ",
                     (*matrix)->dense_bytes(), " bytes are there yet"));
  }
  TCGEMM_RETURN_IF_ERROR(CheckGiven(name + ".rows", operand.rows, view.rows));
  TCGEMM_RETURN_IF_ERROR(CheckGiven(name + ".cols", operand.cols, view.cols));
  const int32_t dtype = view.dtype == DType::kBf16 ? v1::BF16 : v1::FP32;
  TCGEMM_RETURN_IF_ERROR(CheckGiven(name + ".dtype", operand.dtype, dtype));
  // Where rows lie on the server is not the client's.
  TCGEMM_RETURN_IF_ERROR(CheckGiven(name + ".ld", operand.ld, view.cols));
  operand.rows = view.rows;
  operand.cols = view.cols;
  operand.dtype = dtype;
  operand.resident = view;
  found = *std::move(matrix);
  return absl::OkStatus();
}

absl::Status RequestResidents::MakeResult(const RequestFields& fields, RequestLayout& layout) {
  if (!layout.d_is_resident) return absl::OkStatus();
  const absl::StatusOr<ResidentRef> made =
      store_->Create(caller_, {.name = fields.output.handle,
                               .rows = layout.d.rows,
                               .cols = layout.d.cols,
                               .dtype = layout.d.dtype,
                               .ttl = std::chrono::seconds(fields.output.ttl_seconds),
                               .product = true});
  if (!made.ok()) return InField("output.handle", made.status());
  residents_.d = *made;
  layout.d.data = const_cast<void*>(residents_.d->view().data);
  layout.d.ld = residents_.d->view().ld;
  return absl::OkStatus();
}

std::string RequestResidents::CompleteResult() {
  if (residents_.d == nullptr) return "";
  residents_.d->SetComplete();
  return residents_.d->identity().handle;
}

void RequestResidents::Release() {
  if (residents_.d != nullptr && residents_.d->identity().name.empty()) unheard_ = residents_.d;
  residents_ = {};
}

void RequestResidents::DropResult() {
  if (residents_.d != nullptr) store_->Drop(residents_.d);
  residents_.d.reset();
  if (const ResidentRef unheard = unheard_.lock()) store_->Drop(unheard);
  unheard_.reset();
}

}  // namespace tcgemm
