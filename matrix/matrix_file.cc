#include "matrix/matrix_file.h"

#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "matrix/safetensors.h"

namespace tcgemm {

absl::StatusOr<NpyMatrix> ReadMatrixFile(const std::string& path, const NpyOptions& options) {
  const std::optional<SafetensorsPath> safetensors = ParseSafetensorsPath(path);
  if (!safetensors.has_value()) return ReadNpy(path, options);
  TCGEMM_ASSIGN_OR_RETURN(Matrix matrix,
                          ReadSafetensors(*safetensors, {.max_bytes = options.max_bytes}));
  return NpyMatrix{.matrix = std::move(matrix)};
}

absl::Status WriteMatrixFile(const std::string& path, const MatrixView& view) {
  const std::optional<SafetensorsPath> safetensors = ParseSafetensorsPath(path);
  return safetensors.has_value() ? WriteSafetensors(*safetensors, view) : WriteNpy(path, view);
}

std::string FileOf(const std::string& path) {
  const std::optional<SafetensorsPath> safetensors = ParseSafetensorsPath(path);
  return safetensors.has_value() ? safetensors->file : path;
}

}  // namespace tcgemm
