// What `bench` repeats: one product, the same for every call.
#ifndef TCGEMM_CLIENT_CLI_BENCH_PRODUCT_H_
#define TCGEMM_CLIENT_CLI_BENCH_PRODUCT_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "client/cli/check.h"
#include "client/load/load_generator.h"
#include "matrix/matrix.h"

namespace tcgemm::client {

// rows×cols of bf16, normally distributed; stored as its transpose where the call says transposed.
inline Matrix RandomOperand(int64_t rows, int64_t cols, bool transposed, uint64_t seed) {
  if (transposed) std::swap(rows, cols);
  Matrix matrix(rows, cols, DType::kBf16);
  FillNormal(matrix, seed);
  return matrix;
}

class BenchProduct {
 public:
  virtual ~BenchProduct() = default;
  // Of client 0 … clients − 1; one call at a time for each of them, all of them at once.
  virtual CallOutcome Call(int client) = 0;
  // Of the last result of the first client that has one: made under load. None when no call
  // succeeded. After all calls.
  virtual absl::StatusOr<std::optional<Proof>> ProveOne() const = 0;
};

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_BENCH_PRODUCT_H_
