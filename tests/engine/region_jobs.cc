#include "tests/engine/region_jobs.h"

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <utility>

namespace tcgemm {

SharedRegionRef OpenRegion(Engine& engine, size_t bytes, const Caller& caller) {
  std::promise<absl::StatusOr<SharedRegionRef>> promise;
  EXPECT_TRUE(engine.regions()
                  .Open(caller, bytes, [&](auto opened) { promise.set_value(std::move(opened)); })
                  .ok());
  return promise.get_future().get().value();
}

void MoveOperand(MatrixView& operand, std::byte* at, int64_t ld) {
  const size_t row_bytes = static_cast<size_t>(operand.cols) * 2;
  for (int64_t row = 0; row < operand.rows; ++row) {
    std::memcpy(at + row * ld * 2,
                static_cast<const std::byte*>(operand.data) + row * operand.ld * 2, row_bytes);
  }
  operand.data = at;
  operand.ld = ld;
}

}  // namespace tcgemm
