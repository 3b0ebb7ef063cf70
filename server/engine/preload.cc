#include "server/engine/preload.h"

#include "base/status_macros.h"
#include "matrix/matrix_file.h"

namespace tcgemm {

absl::Status PreloadMatrix(Engine& engine, const std::string& name, const std::string& path) {
  if (engine.residents().pool().total_bytes() == 0) {
    return absl::ResourceExhaustedError("this server keeps no matrices: set --resident-bytes");
  }
  // An fp32 file takes twice what its bf16 matrix does.
  const auto max_bytes = static_cast<int64_t>(2 * engine.residents().pool().total_bytes());
  TCGEMM_ASSIGN_OR_RETURN(const NpyMatrix file, ReadMatrixFile(path, {.max_bytes = max_bytes}));
  const Matrix matrix = ToBf16Matrix(file.view());
  if (matrix.bytes() == 0) return absl::InvalidArgumentError("the matrix is empty");
  TCGEMM_ASSIGN_OR_RETURN(
      const ResidentRef resident,
      engine.residents().CreatePreloaded(
          {.name = name, .rows = matrix.rows(), .cols = matrix.cols(), .dtype = DType::kBf16}));
  const HostBytes bytes(matrix.data<std::byte>(), matrix.bytes());
  return engine.transfers().Write(resident, 0, {&bytes, 1});
}

}  // namespace tcgemm
