#include "client/cli/epilogue_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "matrix/npy.h"

namespace tcgemm::client {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class EpilogueFlagsTest : public testing::Test {
 protected:
  EpilogueFlagsTest()
      : folder_(fs::path(testing::TempDir()) / ("flags_test-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~EpilogueFlagsTest() override { fs::remove_all(folder_); }

  // A file of rows × cols, whose elements are 0, 1, 2 …
  std::string Write(const std::string& name, int64_t rows, int64_t cols) {
    Matrix matrix(rows, cols, DType::kFp32);
    for (int64_t i = 0; i < rows * cols; ++i) matrix.data<float>()[i] = static_cast<float>(i);
    const std::string path = (folder_ / (name + ".npy")).string();
    EXPECT_TRUE(WriteNpy(path, matrix.view()).ok());
    return path;
  }
  static std::string Refusal(const EpilogueFlags& flags, const EpilogueShape& d) {
    const auto loaded = LoadEpilogue(flags, d, false);
    EXPECT_TRUE(absl::IsInvalidArgument(loaded.status()) || absl::IsNotFound(loaded.status()))
        << loaded.status();
    return std::string(loaded.status().message());
  }

  const fs::path folder_;
};

TEST_F(EpilogueFlagsTest, NoneGivesTheDefault) {
  EXPECT_FALSE(EpilogueFlags().given());
  EXPECT_TRUE(LoadEpilogue({}, {.m = 2, .n = 3}, false)->epilogue.is_default());
  EXPECT_TRUE(EpilogueFlags{.alpha = 2}.given());
  EXPECT_TRUE(EpilogueFlags{.beta = 0}.given());
  EXPECT_TRUE(EpilogueFlags{.activation = "relu"}.given());
}

TEST_F(EpilogueFlagsTest, BetaIsOneWhereCIsGiven) {
  const std::string c = Write("c", 2, 3);
  EXPECT_EQ(LoadEpilogue({.c = c}, {.m = 2, .n = 3}, false)->epilogue.beta, 1);
  const auto loaded = LoadEpilogue({.beta = -0.5f, .c = c}, {.m = 2, .n = 3}, false);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->epilogue.beta, -0.5f);
  EXPECT_EQ(loaded->epilogue.c.dtype, DType::kFp32) << "not rounded";
  EXPECT_THAT(Refusal({.beta = 1}, {.m = 2, .n = 3}), HasSubstr("--beta needs --c"));
  EXPECT_THAT(Refusal({.c = c}, {.m = 3, .n = 2}), HasSubstr("c is 2x3, D is 3x2"));
}

TEST_F(EpilogueFlagsTest, TheAxisFollowsFromTheLengthOrIsSaid) {
  const std::string flat = Write("flat", 1, 4);
  const std::string tall = Write("tall", 4, 1);
  const auto axis = [](const EpilogueFlags& flags, const EpilogueShape& d) {
    const auto loaded = LoadEpilogue(flags, d, false);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    const MatrixView& bias = loaded->epilogue.bias;
    EXPECT_EQ(ElementAt(bias, bias.rows - 1, bias.cols - 1), 3);
    return BiasIsColumn(bias, d) ? "column" : "row";
  };
  for (const std::string& bias : {flat, tall}) {
    EXPECT_STREQ(axis({.bias = bias}, {.m = 3, .n = 4}), "row");
    EXPECT_STREQ(axis({.bias = bias}, {.m = 4, .n = 3}), "column");
    EXPECT_STREQ(axis({.bias = bias}, {.m = 4, .n = 4}), "row");
    EXPECT_STREQ(axis({.bias = bias, .bias_axis = "column"}, {.m = 4, .n = 4}), "column");
    EXPECT_THAT(Refusal({.bias = bias, .bias_axis = "column"}, {.m = 3, .n = 4}),
                HasSubstr("bias is 4x1, D is 3x4"));
  }
  EXPECT_THAT(Refusal({.bias = Write("matrix", 2, 2)}, {.m = 2, .n = 2}),
              HasSubstr("the bias is 2x2; it must be one row or one column"));
}

TEST_F(EpilogueFlagsTest, FortranOrderIsTurned) {
  // What NumPy writes of an array in Fortran order.
  std::string header = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }";
  header.resize(117, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\x00\x76\x00", 10);
  file += header;
  for (const float value : {0.0f, 3.0f, 1.0f, 4.0f, 2.0f, 5.0f}) {
    file.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  const std::string path = (folder_ / "fortran.npy").string();
  FILE* out = std::fopen(path.c_str(), "wb");
  std::fwrite(file.data(), 1, file.size(), out);
  std::fclose(out);
  const auto loaded = LoadEpilogue({.c = path}, {.m = 2, .n = 3}, false);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  for (int i = 0; i < 6; ++i) EXPECT_EQ(loaded->c.data<float>()[i], static_cast<float>(i));
}

TEST_F(EpilogueFlagsTest, HandlesAndMissingFilesAreRefused) {
  EXPECT_THAT(Refusal({.c = "@w"}, {.m = 2, .n = 3}), HasSubstr("@w is resident"));
  EXPECT_THAT(Refusal({.bias = (folder_ / "no.npy").string()}, {.m = 2, .n = 3}),
              HasSubstr("no.npy"));
}

TEST(ActivationOfTest, Names) {
  EXPECT_EQ(ActivationOf("none"), Activation::kNone);
  EXPECT_EQ(ActivationOf("relu"), Activation::kRelu);
  EXPECT_EQ(ActivationOf("gelu"), Activation::kGelu);
  EXPECT_EQ(ActivationOf("silu"), Activation::kSilu);
}

}  // namespace
}  // namespace tcgemm::client
