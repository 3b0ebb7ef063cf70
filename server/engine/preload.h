// Matrices that the operator puts on the server before it serves.
#ifndef TCGEMM_SERVER_ENGINE_PRELOAD_H_
#define TCGEMM_SERVER_ENGINE_PRELOAD_H_

#include <string>

#include "absl/status/status.h"
#include "server/engine/engine.h"

namespace tcgemm {

// The matrix at `path` (matrix/matrix_file.h: FILE.npy, FILE.safetensors or
// FILE.safetensors:TENSOR) as the preloaded matrix `name`, in bf16 (fp32 is rounded to nearest
// even). For one thread, before the engine serves; the file passes through host memory. Errors of
// ReadMatrixFile, ResidentStore::CreatePreloaded and ResidentTransfers::Write; RESOURCE_EXHAUSTED
// when the engine keeps no matrices or too few bytes, INVALID_ARGUMENT when the matrix is empty.
absl::Status PreloadMatrix(Engine& engine, const std::string& name, const std::string& path);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_ENGINE_PRELOAD_H_
