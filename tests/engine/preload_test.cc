#include "server/engine/preload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "matrix/matrix.h"
#include "matrix/matrix_file.h"
#include "matrix/safetensors.h"
#include "tests/engine/engine_fixture.h"

namespace tcgemm {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr size_t kBudget = size_t{64} << 10;

EngineOptions Options(size_t resident_bytes) {
  EngineOptions options = EngineFixture::DefaultOptions();
  options.resident_bytes = resident_bytes;
  return options;
}

class PreloadTest : public testing::Test {
 protected:
  PreloadTest() : fixture_({}, Options(kBudget)) {
    // ctest runs cases at once, each in a process of its own.
    folder_ = fs::path(testing::TempDir()) / ("preload_test-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  ~PreloadTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  Engine& engine() { return *fixture_.engine; }

  // Everybody's.
  std::vector<std::byte> Read(const std::string& handle) {
    const ResidentRef matrix = engine().residents().Find({}, handle).value();
    std::vector<std::byte> bytes(matrix->dense_bytes());
    EXPECT_TRUE(engine().transfers().Read(matrix, {0, bytes.size()}, bytes.data()).ok());
    return bytes;
  }

  fs::path folder_;
  EngineFixture fixture_;
};

std::vector<std::byte> BytesOf(const Matrix& matrix) {
  const auto* const data = matrix.data<std::byte>();
  return {data, data + matrix.bytes()};
}

TEST_F(PreloadTest, TakesEachFormatAndType) {
  Matrix bf16(3, 5, DType::kBf16);
  Matrix fp32(4, 2, DType::kFp32);
  FillNormal(bf16, 1);
  FillNormal(fp32, 2);
  for (const char* const end : {".npy", ".safetensors"}) {
    ASSERT_TRUE(WriteMatrixFile(Path(std::string("b") + end), bf16.view()).ok());
    ASSERT_TRUE(WriteMatrixFile(Path(std::string("f") + end), fp32.view()).ok());
    const std::string b = std::string("b") + end;
    const std::string f = std::string("f") + end;
    ASSERT_TRUE(PreloadMatrix(engine(), b, Path(b)).ok());
    ASSERT_TRUE(PreloadMatrix(engine(), f, Path(f)).ok());
    EXPECT_EQ(Read(b), BytesOf(bf16));
    EXPECT_EQ(Read(f), BytesOf(ToBf16Matrix(fp32.view())));
  }
}

// What the conversion must do to the last bit, not only what ToBf16Matrix does.
TEST_F(PreloadTest, RoundsToNearestEven) {
  Matrix fp32(1, 4, DType::kFp32);
  const uint32_t patterns[] = {0x3f808000, 0x3f818000, 0x3f808001, 0x7fc00001};
  std::memcpy(fp32.data<std::byte>(), patterns, sizeof(patterns));
  ASSERT_TRUE(WriteMatrixFile(Path("t.safetensors"), fp32.view()).ok());
  ASSERT_TRUE(PreloadMatrix(engine(), "t", Path("t.safetensors")).ok());
  uint16_t rounded[4];
  std::memcpy(rounded, Read("t").data(), sizeof(rounded));
  EXPECT_EQ(rounded[0], 0x3f80);  // halfway, down to even
  EXPECT_EQ(rounded[1], 0x3f82);  // halfway, up to even
  EXPECT_EQ(rounded[2], 0x3f81);
  EXPECT_EQ(rounded[3] & 0x7fc0, 0x7fc0);  // still a NaN
}

TEST_F(PreloadTest, ATensorByItsName) {
  Matrix matrix(2, 2, DType::kBf16);
  FillNormal(matrix, 3);
  const std::string path = Path("m.safetensors");
  ASSERT_TRUE(WriteMatrixFile(path + ":layers.0:weight=1", matrix.view()).ok());
  ASSERT_TRUE(PreloadMatrix(engine(), "w", path + ":layers.0:weight=1").ok());
  EXPECT_EQ(Read("w"), BytesOf(matrix));
  EXPECT_THAT(std::string(PreloadMatrix(engine(), "v", path + ":other").message()),
              AllOf(HasSubstr("m.safetensors"), HasSubstr("other"), HasSubstr("layers.0:weight")));
}

TEST_F(PreloadTest, WhatCannotStay) {
  Matrix large(200, 200, DType::kBf16);
  Matrix empty(0, 3, DType::kBf16);
  ASSERT_TRUE(WriteMatrixFile(Path("large.safetensors"), large.view()).ok());
  ASSERT_TRUE(WriteMatrixFile(Path("empty.safetensors"), empty.view()).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(PreloadMatrix(engine(), "w", Path("large.safetensors"))));
  EXPECT_TRUE(absl::IsInvalidArgument(PreloadMatrix(engine(), "w", Path("empty.safetensors"))));
  EXPECT_TRUE(absl::IsNotFound(PreloadMatrix(engine(), "w", Path("none.safetensors"))));
  // What is too large is not even read, whatever the file.
  Matrix huge(300, 300, DType::kFp32);
  for (const char* const name : {"huge.npy", "huge.safetensors"}) {
    ASSERT_TRUE(WriteMatrixFile(Path(name), huge.view()).ok());
    const absl::Status status = PreloadMatrix(engine(), "w", Path(name));
    EXPECT_TRUE(absl::IsResourceExhausted(status));
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(name), HasSubstr("--resident-bytes 65536")));
  }
  EXPECT_TRUE(engine().residents().ListPage({}, "", 10).matrices.empty());

  EngineFixture none({}, Options(0));
  EXPECT_TRUE(
      absl::IsResourceExhausted(PreloadMatrix(*none.engine, "w", Path("large.safetensors"))));
}

}  // namespace
}  // namespace tcgemm
