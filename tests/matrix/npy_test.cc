#include "matrix/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "matrix/bf16.h"
#include "matrix/matrix.h"

namespace tcgemm {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// A .npy file by hand: format major.0, `dict` as the header, then `data`.
std::string Npy(const std::string& dict, const std::string& data, int major = 1) {
  std::string file("\x93NUMPY", 6);
  file += static_cast<char>(major);
  file += '\0';
  const std::string header = dict + "\n";
  for (int byte = 0; byte < (major == 1 ? 2 : 4); ++byte) {
    file += static_cast<char>(header.size() >> (8 * byte));
  }
  return file + header + data;
}

std::string Dict(const std::string& descr, const std::string& shape, bool fortran = false) {
  return "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") +
         ", 'shape': " + shape + ", }";
}

std::string Floats(const std::vector<float>& values) {
  std::string bytes(values.size() * 4, '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class NpyTest : public testing::Test {
 protected:
  void SetUp() override {
    // ctest runs cases at once, each in a process of its own.
    folder_ = fs::path(testing::TempDir()) / ("npy_test-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    path_ = (folder_ / "x.npy").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  absl::StatusOr<NpyMatrix> Read(const std::string& bytes, const NpyOptions& options = {}) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return ReadNpy(path_, options);
  }
  // The message of the INVALID_ARGUMENT that reading must give.
  std::string Refusal(const std::string& bytes, const NpyOptions& options = {}) {
    const absl::StatusOr<NpyMatrix> result = Read(bytes, options);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << result.status();
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(path_));
    return std::string(result.status().message());
  }
  std::string Bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  int64_t FilesInFolder() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(NpyTest, ReadsFp32) {
  const absl::StatusOr<NpyMatrix> read =
      Read(Npy(Dict("<f4", "(2, 3)"), Floats({1, 2, 3, 4, 5, 6})));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->view().op_rows(), 2);
  EXPECT_EQ(read->view().op_cols(), 3);
  EXPECT_EQ(ElementAt(read->view(), 1, 0), 4);
}

TEST_F(NpyTest, FortranOrderIsATransposedView) {
  const absl::StatusOr<NpyMatrix> read =
      Read(Npy(Dict("<f4", "(2, 3)", true), Floats({1, 4, 2, 5, 3, 6})));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->fortran_order);
  EXPECT_TRUE(read->view().transposed);
  EXPECT_EQ(read->view().op_rows(), 2);
  EXPECT_EQ(read->view().op_cols(), 3);
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) EXPECT_EQ(ElementAt(read->view(), i, j), 3 * i + j + 1);
  }
}

TEST_F(NpyTest, OneDimensionIsARowInEitherOrder) {
  for (const bool fortran : {false, true}) {
    const absl::StatusOr<NpyMatrix> read =
        Read(Npy(Dict("<f4", "(3,)", fortran), Floats({1, 2, 3})));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->view().op_rows(), 1);
    EXPECT_EQ(read->view().op_cols(), 3);
    EXPECT_EQ(ElementAt(read->view(), 0, 2), 3);
  }
}

TEST_F(NpyTest, ReadsBf16AndU2OnlyWhenAsked) {
  const std::string data("\x80\x3f\x00\xc0", 4);  // 1, -2
  for (const char* descr : {"<V2", "|V2"}) {
    const absl::StatusOr<NpyMatrix> read = Read(Npy(Dict(descr, "(1, 2)"), data));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->matrix.dtype(), DType::kBf16);
    EXPECT_EQ(ElementAt(read->view(), 0, 0), 1);
    EXPECT_EQ(ElementAt(read->view(), 0, 1), -2);
  }
  const std::string u2 = Npy(Dict("<u2", "(1, 2)"), data);
  EXPECT_THAT(Refusal(u2), AllOf(HasSubstr("'<u2'"), HasSubstr("only when asked")));
  ASSERT_TRUE(Read(u2, {.u2_is_bf16 = true}).ok());
  EXPECT_EQ(Read(u2, {.u2_is_bf16 = true})->matrix.dtype(), DType::kBf16);
}

TEST_F(NpyTest, ReadsEveryFormatKeyOrderQuotesAndSpacing) {
  const std::string data = Floats({1, 2});
  for (const int major : {1, 2, 3}) EXPECT_TRUE(Read(Npy(Dict("<f4", "(1, 2)"), data, major)).ok());
  for (const char* dict : {"{\"shape\":(1,2),\"fortran_order\":False,\"descr\":\"<f4\"}",
                           "{ 'shape' : ( 1 , 2 , ) , 'descr' : '<f4' , 'fortran_order' : False }",
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (1L, 2L)}     "}) {
    EXPECT_TRUE(Read(Npy(dict, data)).ok()) << Read(Npy(dict, data)).status();
  }
}

TEST_F(NpyTest, ReadsEmptyArrays) {
  const absl::StatusOr<NpyMatrix> read = Read(Npy(Dict("<f4", "(0, 5)"), ""));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->view().op_cols(), 5);
}

TEST_F(NpyTest, RefusesOtherTypesByName) {
  for (const char* descr : {"<f2", "<f8", "|i1", "<i4", "|b1", "<c8", "|V4", "=f4", "f4", ""}) {
    EXPECT_THAT(Refusal(Npy(Dict(descr, "(1, 1)"), "12345678")),
                AllOf(HasSubstr("type '" + std::string(descr) + "'"),
                      HasSubstr("supported are '<f4' (fp32), '<V2' and '|V2' (bf16)")));
  }
  EXPECT_THAT(Refusal(Npy(Dict(">f4", "(1, 1)"), "1234")), HasSubstr("big-endian"));
  EXPECT_THAT(Refusal(Npy(Dict("|O", "(1, 1)"), "1234")), HasSubstr("Python objects"));
  EXPECT_THAT(
      Refusal(Npy("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1, 1)}", "1234")),
      HasSubstr("structured"));
}

TEST_F(NpyTest, RefusesOtherShapes) {
  EXPECT_THAT(Refusal(Npy(Dict("<f4", "()"), "1234")), HasSubstr("0 dimensions"));
  EXPECT_THAT(Refusal(Npy(Dict("<f4", "(1, 1, 1)"), "1234")),
              HasSubstr("3 dimensions (1, 1, 1); 1 and 2 are supported"));
  EXPECT_THAT(Refusal(Npy(Dict("<f4", "(-1, -1)"), "1234")), HasSubstr("negative"));
  EXPECT_THAT(Refusal(Npy(Dict("<f4", "(99999999999999999999, 1)"), "")), HasSubstr("64 bits"));
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "1, ";
  EXPECT_THAT(Refusal(Npy(Dict("<f4", "(" + many + ")"), "1234")), HasSubstr("too many"));
}

TEST_F(NpyTest, RefusesSizesBeyondTheLimitBeforeAllocating) {
  // 2^62 · 2^62 overflows; 2^32 · 2^32 does; 2^31 · 2^31 · 4 does; the last is just large.
  for (const char* shape :
       {"(4611686018427387904, 4611686018427387904)", "(4294967296, 4294967296)",
        "(2147483648, 2147483648)", "(9223372036854775807, 1)", "(1048576, 1048576)"}) {
    EXPECT_THAT(Refusal(Npy(Dict("<f4", shape), "")), HasSubstr("is larger than 1099511627776"));
  }
  const std::string four = Npy(Dict("<f4", "(1, 4)"), Floats({1, 2, 3, 4}));
  EXPECT_TRUE(Read(four, {.max_bytes = 16}).ok());
  EXPECT_THAT(Refusal(four, {.max_bytes = 15}), HasSubstr("larger than 15 bytes"));
}

TEST_F(NpyTest, RefusesATruncationAtEveryByteAndTrailingBytes) {
  for (const int major : {1, 2}) {
    const std::string whole = Npy(Dict("<f4", "(2, 2)"), Floats({1, 2, 3, 4}), major);
    ASSERT_TRUE(Read(whole).ok());
    for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
      EXPECT_THAT(Refusal(whole.substr(0, bytes)), HasSubstr("truncated")) << bytes;
    }
    EXPECT_THAT(Refusal(whole + "x"), HasSubstr("trailing bytes"));
  }
}

TEST_F(NpyTest, RefusesAWrongMagicOrFormat) {
  const std::string right = Npy(Dict("<f4", "(1, 1)"), "1234");
  for (size_t byte = 0; byte < 6; ++byte) {
    std::string wrong = right;
    wrong[byte] ^= 1;
    EXPECT_THAT(Refusal(wrong), HasSubstr("not a .npy file"));
  }
  for (const int major : {0, 4, 255}) {
    EXPECT_THAT(Refusal(Npy(Dict("<f4", "(1, 1)"), "1234", major)), HasSubstr(".npy format"));
  }
  std::string minor = right;
  minor[7] = 1;
  EXPECT_THAT(Refusal(minor), HasSubstr(".npy format 1.1"));
}

TEST_F(NpyTest, RefusesALyingHeaderLength) {
  const std::string right = Npy(Dict("<f4", "(1, 1)"), "1234", 2);
  std::string huge = right;
  huge.replace(8, 4, "\xff\xff\xff\xff");
  EXPECT_THAT(Refusal(huge), HasSubstr("4294967295 bytes; at most 65536"));
  for (const int delta : {-30, -3, 3}) {  // too short cuts the dict, too long eats the data
    std::string lying = right;
    lying[8] = static_cast<char>(lying[8] + delta);
    Refusal(lying);
  }
  std::string zero = right;
  zero.replace(8, 4, std::string(4, '\0'));
  EXPECT_THAT(Refusal(zero), HasSubstr("bad .npy header"));
}

TEST_F(NpyTest, RefusesBrokenHeaders) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "expected '{'"},
      {"[]", "expected '{'"},
      {"{}", "missing"},
      {"{'descr': '<f4', 'shape': (1, 1)}", "missing"},
      {"{'descr': '<f4', 'descr': '<f4'}", "comes twice"},
      {"{'descr': '<f4', 'colour': 'red'}", "unknown key 'colour'"},
      {"{'descr': '<f4", "does not end"},
      {"{'descr' '<f4'}", "expected ':'"},
      {"{'descr': '<f4' 'shape': (1, 1)}", "expected ',' or '}'"},
      {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1, 1)}", "expected True or False"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': 1}", "expected '('"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}", "expected ',' or ')'"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (a, 1)}", "expected a dimension"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)} x", "expected the end"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}" + std::string(1, '\0'),
       "expected the end"},
  };
  for (const auto& [dict, message] : cases) {
    EXPECT_THAT(Refusal(Npy(dict, "1234")), HasSubstr(message)) << dict;
  }
}

TEST_F(NpyTest, NoByteOfTheHeaderCanBreakTheParser) {
  const std::string right = Npy(Dict("<f4", "(2, 2)"), Floats({1, 2, 3, 4}));
  for (size_t byte = 0; byte < right.size() - 16; ++byte) {
    for (const char value : std::string("\0\n'(){},9-\x80\xff", 12)) {
      std::string changed = right;
      changed[byte] = value;
      const absl::StatusCode code = Read(changed).status().code();
      ASSERT_TRUE(code == absl::StatusCode::kOk || code == absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST_F(NpyTest, MissingFilesAndFoldersSaySo) {
  const absl::Status missing = ReadNpy(path_ + ".none", {}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr(path_ + ".none"));
  EXPECT_EQ(ReadNpy(folder_.string(), {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(NpyTest, WritesWhatNumpyWrites) {
  Matrix matrix(1, 2, DType::kBf16);
  matrix.data<Bf16>()[0] = ToBf16(1.0f);
  matrix.data<Bf16>()[1] = ToBf16(-2.0f);
  ASSERT_TRUE(WriteNpy(path_, matrix.view()).ok());
  std::string header = "{'descr': '<V2', 'fortran_order': False, 'shape': (1, 2), }";
  header.append(118 - header.size() - 1, ' ');
  const std::string expected = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n" +
                               std::string("\x80\x3f\x00\xc0", 4);
  EXPECT_EQ(Bytes().substr(0, 70), expected.substr(0, 70));
  EXPECT_EQ(Bytes().size() % 64, 4u);
  EXPECT_EQ(Bytes().substr(Bytes().size() - 5), "\n" + expected.substr(expected.size() - 4));
}

TEST_F(NpyTest, WhatIsWrittenIsReadBack) {
  EXPECT_TRUE(rc::check("round trip", [this] {
    const int64_t rows = *rc::gen::inRange<int64_t>(0, 9);
    const int64_t cols = *rc::gen::inRange<int64_t>(0, 9);
    const DType dtype = *rc::gen::element(DType::kBf16, DType::kFp32);
    Matrix matrix(rows, cols, cols + *rc::gen::inRange<int64_t>(0, 3), dtype);
    FillNormal(matrix, *rc::gen::arbitrary<uint64_t>());
    MatrixView view = matrix.view();
    view.transposed = *rc::gen::arbitrary<bool>();
    RC_ASSERT(WriteNpy(path_, view).ok());
    const absl::StatusOr<NpyMatrix> read = ReadNpy(path_, {});
    RC_ASSERT(read.ok());
    RC_ASSERT(!read->fortran_order && read->matrix.dtype() == dtype);
    RC_ASSERT(read->view().op_rows() == view.op_rows());
    RC_ASSERT(read->view().op_cols() == view.op_cols());
    for (int64_t i = 0; i < view.op_rows(); ++i) {
      for (int64_t j = 0; j < view.op_cols(); ++j) {
        RC_ASSERT(ElementAt(read->view(), i, j) == ElementAt(view, i, j));
      }
    }
  }));
  EXPECT_EQ(FilesInFolder(), 1);  // no temporary is left
}

TEST_F(NpyTest, AFailedWriteLeavesTheOldFileAndNothingElse) {
  Matrix matrix(2, 2, DType::kFp32);
  FillNormal(matrix, 1);
  const absl::Status status = WriteNpy((folder_ / "none" / "x.npy").string(), matrix.view());
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("x.npy"));
  // A folder in the way: rename fails after everything was written.
  fs::create_directories(folder_ / "taken");
  EXPECT_FALSE(WriteNpy((folder_ / "taken").string(), matrix.view()).ok());
  EXPECT_EQ(FilesInFolder(), 1);
  const Matrix bytes(1, 1, DType::kInt8);
  EXPECT_EQ(WriteNpy(path_, bytes.view()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(NpyTest, ReplacesAFileAsAWhole) {
  Matrix matrix(2, 2, DType::kFp32);
  FillNormal(matrix, 1);
  ASSERT_TRUE(WriteNpy(path_, matrix.view()).ok());
  std::ifstream old_file(path_, std::ios::binary);  // a reader that began before
  Matrix larger(30, 30, DType::kFp32);
  FillNormal(larger, 2);
  ASSERT_TRUE(WriteNpy(path_, larger.view()).ok());
  const std::string old_bytes(std::istreambuf_iterator<char>(old_file), {});
  EXPECT_EQ(old_bytes.size() % 64, 16u);  // its header and four floats, not a mixture
  EXPECT_EQ(ReadNpy(path_, {})->view().op_rows(), 30);
}

TEST(ToBf16MatrixTest, RoundsAndAppliesTheTranspose) {
  Matrix matrix(2, 3, 5, DType::kFp32);
  FillNormal(matrix, 1);
  const Matrix converted = ToBf16Matrix(matrix.transposed_view());
  ASSERT_EQ(converted.rows(), 3);
  ASSERT_EQ(converted.cols(), 2);
  ASSERT_EQ(converted.ld(), 2);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 2; ++j) {
      const float x = static_cast<float>(ElementAt(matrix.view(), j, i));
      EXPECT_EQ(converted.data<Bf16>()[i * 2 + j], ToBf16(x));
    }
  }
}

TEST(ToBf16MatrixTest, CopiesBf16BitForBit) {
  Matrix matrix(256, 256, DType::kBf16);
  for (int i = 0; i < 65536; ++i) matrix.data<Bf16>()[i].bits = static_cast<uint16_t>(i);
  const Matrix copy = ToBf16Matrix(matrix.view());
  EXPECT_EQ(std::memcmp(copy.data<Bf16>(), matrix.data<Bf16>(), matrix.bytes()), 0);
}

}  // namespace
}  // namespace tcgemm
