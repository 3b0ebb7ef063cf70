#include "server/engine/resident_matrix.h"

#include <gtest/gtest.h>

#include <vector>

namespace tcgemm {
namespace {

using absl::StatusCode;
using Ranges = std::vector<ByteRange>;

struct Fixture {
  std::vector<std::byte> memory = std::vector<std::byte>(8192);
  BufferPool pool{"test", MemoryBlock(memory.data(), memory.size(), [](void*) {})};

  // 4x6 bf16 in rows of 64: 48 dense bytes.
  ResidentMatrix Make(bool product = false) {
    return ResidentMatrix({.handle = "m", .name = "m", .product = product},
                          {.rows = 4, .cols = 6, .ld = 64}, pool.TryLease(512).value());
  }
};

TEST(ResidentMatrixTest, IsCompleteWhenEveryByteIsThere) {
  Fixture f;
  ResidentMatrix matrix = f.Make();
  EXPECT_EQ(matrix.dense_bytes(), 48u);
  EXPECT_EQ(matrix.view().data, f.memory.data());
  EXPECT_EQ(matrix.BeginWrite({0, 20}).value(), (Ranges{{0, 20}}));
  // On its way, not there.
  EXPECT_EQ(matrix.present(), Ranges{});
  EXPECT_EQ(matrix.BeginWrite({10, 48}).value(), (Ranges{{20, 48}}));
  matrix.EndWrite(Ranges{{20, 48}}, true);
  EXPECT_EQ(matrix.present(), (Ranges{{20, 48}}));
  EXPECT_FALSE(matrix.complete());
  matrix.EndWrite(Ranges{{0, 20}}, true);
  EXPECT_TRUE(matrix.complete());
  EXPECT_EQ(matrix.BeginWrite({0, 48}).value(), Ranges{}) << "what is there is not written again";
}

TEST(ResidentMatrixTest, AFailedWriteMayBeRepeated) {
  Fixture f;
  ResidentMatrix matrix = f.Make();
  ASSERT_EQ(matrix.BeginWrite({0, 48}).value(), (Ranges{{0, 48}}));
  matrix.EndWrite(Ranges{{0, 48}}, false);
  EXPECT_EQ(matrix.BeginWrite({4, 8}).value(), (Ranges{{4, 8}}));
}

TEST(ResidentMatrixTest, RefusesRangesOutsideAndProducts) {
  Fixture f;
  ResidentMatrix matrix = f.Make();
  for (const ByteRange& bad : Ranges{{0, 49}, {48, 49}, {5, 5}, {SIZE_MAX - 1, SIZE_MAX}}) {
    EXPECT_EQ(matrix.BeginWrite(bad).status().code(), StatusCode::kInvalidArgument);
  }
  ResidentMatrix product = f.Make(true);
  EXPECT_EQ(product.BeginWrite({0, 1}).status().code(), StatusCode::kFailedPrecondition);
  product.SetComplete();
  EXPECT_TRUE(product.complete());
  EXPECT_EQ(product.present(), (Ranges{{0, 48}}));
}

}  // namespace
}  // namespace tcgemm
