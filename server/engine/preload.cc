#include "server/engine/preload.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "matrix/matrix_file.h"

namespace tcgemm {
namespace {

// The readers know a number of bytes, but not where it comes from.
absl::Status NameTheBudget(const absl::Status& status, int64_t max_bytes, size_t budget) {
  if (!absl::StrContains(status.message(), absl::StrCat("larger than ", max_bytes, " bytes"))) {
    return status;
  }
  return absl::Status(
      absl::StatusCode::kResourceExhausted,
      absl::StrCat(status.message(), ", which do not fit --resident-bytes ", budget, " in bf16"));
}

}  // namespace

absl::Status PreloadMatrix(Engine& engine, const std::string& name, const std::string& path) {
  const size_t budget = engine.residents().pool().total_bytes();
  if (budget == 0) {
    return absl::ResourceExhaustedError("this server keeps no matrices: set --resident-bytes");
  }
  // An fp32 file takes twice what its bf16 matrix does.
  const auto max_bytes = static_cast<int64_t>(2 * budget);
  const absl::StatusOr<NpyMatrix> file = ReadMatrixFile(path, {.max_bytes = max_bytes});
  if (!file.ok()) return NameTheBudget(file.status(), max_bytes, budget);
  const Matrix matrix = ToBf16Matrix(file->view());
  if (matrix.bytes() == 0) return absl::InvalidArgumentError("the matrix is empty");
  TCGEMM_ASSIGN_OR_RETURN(
      const ResidentRef resident,
      engine.residents().CreatePreloaded(
          {.name = name, .rows = matrix.rows(), .cols = matrix.cols(), .dtype = DType::kBf16}));
  const HostBytes bytes(matrix.data<std::byte>(), matrix.bytes());
  return engine.transfers().Write(resident, 0, {&bytes, 1});
}

}  // namespace tcgemm
