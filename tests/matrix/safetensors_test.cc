#include "matrix/safetensors.h"

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
#include "matrix/matrix_file.h"

namespace tcgemm {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::string Length(uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

// A file by hand.
std::string File(const std::string& header, const std::string& data) {
  return Length(header.size()) + header + data;
}

std::string Floats(const std::vector<float>& values) {
  std::string bytes(values.size() * 4, '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// "name":{…}
std::string Tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" +
         offsets + "}";
}

const char kWhole[] = R"({"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}})";

class SafetensorsTest : public testing::Test {
 protected:
  void SetUp() override {
    // ctest runs cases at once, each in a process of its own.
    folder_ = fs::path(testing::TempDir()) / ("safetensors_test-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    path_ = (folder_ / "x.safetensors").string();
  }
  void TearDown() override { fs::remove_all(folder_); }

  absl::StatusOr<Matrix> Read(const std::string& bytes, const std::string& tensor = "",
                              const SafetensorsOptions& options = {}) {
    std::ofstream(path_, std::ios::binary) << bytes;
    return ReadSafetensors({.file = path_, .tensor = tensor}, options);
  }
  // The message of the INVALID_ARGUMENT that reading must give.
  std::string Refusal(const std::string& bytes, const std::string& tensor = "",
                      const SafetensorsOptions& options = {}) {
    const absl::Status status = Read(bytes, tensor, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
    return std::string(status.message());
  }
  // Of a file with these tensors and so many bytes behind them.
  std::string RefusalOf(const std::vector<std::string>& tensors, size_t bytes) {
    std::string header = "{";
    for (const std::string& tensor : tensors) header += (header == "{" ? "" : ",") + tensor;
    return Refusal(File(header + "}", std::string(bytes, 'x')), "w");
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

TEST(ParseSafetensorsPathTest, FileAndTensor) {
  EXPECT_FALSE(ParseSafetensorsPath("a.npy").has_value());
  EXPECT_FALSE(ParseSafetensorsPath("a.safetensors.npy").has_value());
  EXPECT_FALSE(ParseSafetensorsPath("a.safetensors/b.npy").has_value());
  const std::vector<std::vector<std::string>> cases = {
      {"a.safetensors", "a.safetensors", ""},
      {"a.safetensors:", "a.safetensors", ""},
      {"d:e/a.safetensors:w", "d:e/a.safetensors", "w"},
      {"a.safetensors:model.layers.0:w", "a.safetensors", "model.layers.0:w"},
      {"a.safetensors:b.safetensors", "a.safetensors", "b.safetensors"},
      {"a.safetensors/b.safetensors:w", "a.safetensors/b.safetensors", "w"},
  };
  for (const auto& one : cases) {
    const auto parsed = ParseSafetensorsPath(one[0]);
    ASSERT_TRUE(parsed.has_value()) << one[0];
    EXPECT_EQ(parsed->file, one[1]);
    EXPECT_EQ(parsed->tensor, one[2]);
  }
}

TEST_F(SafetensorsTest, ReadsTheOnlyTensorWithOrWithoutItsName) {
  const std::string file = File(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}   )",
                                Floats({1, 2, 3, 4, 5, 6}));
  for (const char* name : {"", "w"}) {
    const absl::StatusOr<Matrix> read = Read(file, name);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->dtype(), DType::kFp32);
    EXPECT_EQ(read->rows(), 2);
    EXPECT_EQ(read->cols(), 3);
    EXPECT_EQ(ElementAt(read->view(), 1, 0), 4);
  }
  EXPECT_THAT(Refusal(file, "v"), AllOf(HasSubstr("no tensor 'v'"), HasSubstr("1 tensor: 'w'")));
}

TEST_F(SafetensorsTest, ReadsOneOfSeveralBesideOnesThatItDoesNotSupport) {
  const std::string header = "{\"__metadata__\":{\"format\":\"pt\",\"made by\":\"hand\"}," +
                             Tensor("last", "BF16", "[1,2]", "[10,14]") + "," +
                             Tensor("ints", "I8", "[2]", "[0,2]") + "," +
                             Tensor("a \\\"b\\\" \\u00e4", "F32", "[2,1]", "[2,10]") + "}";
  // 'ints' moves the F32 to byte 2: the format allows it, but it is misaligned.
  const std::string data = "ij" + Floats({7, 8}) + std::string("\x80\x3f\x00\xc0", 4);
  const absl::StatusOr<Matrix> bf16 = Read(File(header, data), "last");
  ASSERT_TRUE(bf16.ok()) << bf16.status();
  EXPECT_EQ(bf16->dtype(), DType::kBf16);
  EXPECT_EQ(ElementAt(bf16->view(), 0, 0), 1);
  EXPECT_EQ(ElementAt(bf16->view(), 0, 1), -2);
  EXPECT_THAT(Refusal(File(header, data), "a \"b\" ä"),
              HasSubstr("data_offsets [2, 10] are misaligned: F32 begins at a multiple of 4"));
  EXPECT_THAT(Refusal(File(header, data), "ints"),
              HasSubstr("tensor 'ints': dtype 'I8'; supported are BF16 and F32"));
  EXPECT_THAT(Refusal(File(header, data)),
              AllOf(HasSubstr("x.safetensors:TENSOR"), HasSubstr("3 tensors: 'ints', 'a ")));
}

TEST_F(SafetensorsTest, ReadsEmptyTensors) {
  const absl::StatusOr<Matrix> read = Read(File("{" + Tensor("w", "F32", "[0,5]", "[0,0]") + "," +
                                                    Tensor("v", "F32", "[1,1]", "[0,4]") + "}",
                                                "1234"),
                                           "w");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->rows(), 0);
  EXPECT_EQ(read->cols(), 5);
  EXPECT_THAT(Refusal(File("{}", "")), HasSubstr("the file has 0 tensors"));
}

TEST_F(SafetensorsTest, RefusesOtherShapes) {
  for (const auto& [shape, message] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "shape [] has 0 dimensions; 2 are supported"},
           {"[2]", "shape [2] has 1 dimensions; 2 are supported"},
           {"[1,2,1]", "shape [1, 2, 1] has 3 dimensions; 2 are supported"},
           {"[1,1]", "shape [1, 1] F32 takes 4 bytes, data_offsets [0, 8] hold 8"},
           {"[2,2]", "shape [2, 2] F32 takes 16 bytes, data_offsets [0, 8] hold 8"},
           {"[4294967296,4294967296]", "is larger than 1099511627776 bytes"},
           {"[9223372036854775807,1]", "is larger than 1099511627776 bytes"},
           {"[-1,2]", "shape has -1, below 0"},
           {"[99999999999999999999,1]", "shape has 99999999999999999999, no integer"},
           {"[9223372036854775808,1]", "shape has 9223372036854775808, more than 63 bits"},
           {"[1.0,2]", "shape has 1.0, no integer"},
           {"[[1],2]", "an array where a number was expected"},
           {"[\"1\",2]", "a string where a number was expected"},
           {"2", "a number where the array shape was expected"},
           {"null", "null where the array shape was expected"},
           {"{}", "an object where the array shape was expected"}}) {
    EXPECT_THAT(RefusalOf({Tensor("w", "F32", shape, "[0,8]")}, 8),
                AllOf(HasSubstr("tensor 'w': "), HasSubstr(message)));
  }
  std::string many = "[1";
  for (int i = 0; i < 1000; ++i) many += ",1";
  EXPECT_THAT(RefusalOf({Tensor("w", "F32", many + "]", "[0,4]")}, 4),
              HasSubstr("shape has more than 64 numbers"));
  EXPECT_TRUE(Read(File(kWhole, Floats({1, 2})), "", {.max_bytes = 8}).ok());
  EXPECT_THAT(Refusal(File(kWhole, Floats({1, 2})), "", {.max_bytes = 7}),
              HasSubstr("shape [1, 2] F32 is larger than 7 bytes"));
}

TEST_F(SafetensorsTest, RefusesOffsetsThatDoNotCoverTheFileOnce) {
  const auto f32 = [](const std::string& name, const std::string& offsets) {
    return Tensor(name, "F32", "[1,1]", offsets);
  };
  EXPECT_THAT(RefusalOf({f32("w", "[0,4]"), f32("v", "[2,6]")}, 6),
              HasSubstr("tensor 'v': data_offsets [2, 6] overlap those of 'w', which end at 4"));
  EXPECT_THAT(RefusalOf({f32("w", "[0,4]"), f32("v", "[0,4]")}, 4), HasSubstr("overlap"));
  EXPECT_THAT(RefusalOf({f32("w", "[0,4]"), f32("v", "[8,12]")}, 12),
              HasSubstr("tensor 'v': data_offsets [8, 12] leave a hole after byte 4"));
  EXPECT_THAT(RefusalOf({f32("w", "[4,8]")}, 8), HasSubstr("hole after byte 0"));
  EXPECT_THAT(RefusalOf({f32("w", "[0,4]")}, 3),
              HasSubstr("truncated: data_offsets [0, 4], the file has 3 bytes after its header"));
  EXPECT_THAT(RefusalOf({f32("w", "[0,4]")}, 5), HasSubstr("trailing bytes: the tensors take 4"));
  EXPECT_THAT(RefusalOf({f32("w", "[4,0]")}, 4), HasSubstr("end before they begin"));
  EXPECT_THAT(RefusalOf({f32("w", "[0,9223372036854775807]")}, 4), HasSubstr("truncated"));
  EXPECT_THAT(RefusalOf({f32("w", "[0,18446744073709551615]")}, 4),
              HasSubstr("data_offsets has 18446744073709551615, more than 63 bits"));
  EXPECT_THAT(RefusalOf({f32("w", "[-4,0]")}, 4), HasSubstr("data_offsets has -4, below 0"));
  EXPECT_THAT(RefusalOf({f32("w", "[0]")}, 4), HasSubstr("data_offsets has 1 numbers"));
  EXPECT_THAT(RefusalOf({f32("w", "[0,4,8]")}, 4), HasSubstr("data_offsets has 3 numbers"));
}

TEST_F(SafetensorsTest, RefusesBrokenHeaders) {
  const std::string w = Tensor("w", "F32", "[1,1]", "[0,4]");
  for (const auto& [header, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "does not begin with '{'"},
           {" {" + w + "}", "does not begin with '{'"},
           {"\xef\xbb\xbf{" + w + "}", "does not begin with '{'"},
           {"[]", "does not begin with '{'"},
           {"{", "not JSON from its byte"},
           {"{" + w, "not JSON from its byte"},
           {"{" + w + "}}", "not JSON from its byte"},
           {"{" + w + "} x", "not JSON from its byte"},
           {"{" + w + ",}", "not JSON from its byte"},
           {"{\"\xff\":{}}", "not JSON from its byte"},
           {"{" + w + "," + w + "}", "tensor 'w': the name comes twice"},
           {R"({"w":{"dtype":"F32"}})", "is missing"},
           {R"({"w":{}})", "tensor 'w': one of the fields dtype, shape and data_offsets"},
           {R"({"w":{"dtype":"F32","dtype":"F32"}})", "the field dtype comes twice"},
           {R"({"w":{"colour":"red"}})", "tensor 'w': unknown field 'colour'"},
           {R"({"w":{"dtype":7}})", "a number where the string dtype was expected"},
           {R"({"w":{"dtype":{}}})", "an object where the string dtype"},
           {R"({"w":{"data_offsets":true}})", "a truth value where the array data_offsets"},
           {R"({"w":3})", "a number where an object was expected"},
           {R"({"w":[]})", "an array where an object was expected"},
           {R"({"__metadata__":3})", "__metadata__ has a number"},
           {R"({"__metadata__":{"a":3}})", "__metadata__ has a number"},
           {R"({"__metadata__":{"a":{}}})", "__metadata__ has an object"},
           {R"({"__metadata__":{},"__metadata__":{}})", "__metadata__ comes twice"},
       }) {
    EXPECT_THAT(Refusal(File(header, "1234")), HasSubstr(message)) << header;
  }
  // Depth costs nothing, and a long name does not become a long message.
  EXPECT_THAT(Refusal(File("{\"w\":" + std::string(1'000'000, '['), "")), HasSubstr("an array"));
  EXPECT_LT(Refusal(File("{\"" + std::string(1'000'000, 'n') + "\":1}", "")).size(), 400u);
}

TEST_F(SafetensorsTest, RefusesALyingHeaderLengthBeforeAllocating) {
  const std::string rest = std::string(kWhole) + Floats({1, 2});
  for (const uint64_t length : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{100'000'001}}) {
    EXPECT_THAT(Refusal(Length(length) + rest),
                HasSubstr(std::to_string(length) + " bytes; at most 100000000 are supported"));
  }
  EXPECT_THAT(Refusal(Length(100'000'000) + rest),
              HasSubstr("truncated: the header takes 100000000 bytes, the file has"));
  EXPECT_THAT(Refusal(File(kWhole, Floats({1, 2})), "", {.max_header_bytes = 10}),
              HasSubstr("at most 10 are supported"));
  for (const int delta : {-30, -1, 1, 8}) Refusal(Length(sizeof(kWhole) - 1 + delta) + rest);
  EXPECT_THAT(Refusal(Length(0) + rest), HasSubstr("does not begin with '{'"));
}

TEST_F(SafetensorsTest, RefusesATruncationAtEveryByteAndTrailingBytes) {
  const std::string whole = File(kWhole, Floats({1, 2}));
  ASSERT_TRUE(Read(whole).ok());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_THAT(Refusal(whole.substr(0, bytes)), HasSubstr("truncated")) << bytes;
  }
  EXPECT_THAT(Refusal(whole + "x"), HasSubstr("trailing bytes"));
}

TEST_F(SafetensorsTest, NoByteOfTheHeaderCanBreakTheParser) {
  const std::string right = File(kWhole, Floats({1, 2}));
  for (size_t byte = 0; byte < right.size() - 8; ++byte) {
    for (const char value : std::string("\0\n\"{}[]:,9-e.\\\x80\xff", 16)) {
      std::string changed = right;
      changed[byte] = value;
      const absl::StatusCode code = Read(changed).status().code();
      ASSERT_TRUE(code == absl::StatusCode::kOk || code == absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST_F(SafetensorsTest, TheNumberOfTensorsIsLimited) {
  std::string header = "{";
  for (int i = 0; i < 1'000'001; ++i) {
    header += "\"" + std::to_string(i) + R"(":{"dtype":"I8","shape":[],"data_offsets":[0,0]},)";
  }
  header.back() = '}';
  EXPECT_THAT(Refusal(File(header, "")), HasSubstr("more than 1000000 tensors"));
}

TEST_F(SafetensorsTest, MissingFilesAndFoldersSaySo) {
  const absl::Status missing = ReadSafetensors({.file = path_}, {}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr(path_));
  fs::create_directories(path_);
  EXPECT_EQ(ReadSafetensors({.file = path_}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SafetensorsTest, WritesWhatTheFormatSays) {
  Matrix matrix(1, 2, DType::kBf16);
  matrix.data<Bf16>()[0] = ToBf16(1.0f);
  matrix.data<Bf16>()[1] = ToBf16(-2.0f);
  ASSERT_TRUE(WriteSafetensors({.file = path_, .tensor = "a\"b"}, matrix.view()).ok());
  const std::string header = R"({"a\"b":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}})";
  const size_t padded = (header.size() + 7) / 8 * 8;
  EXPECT_EQ(Bytes(), Length(padded) + header + std::string(padded - header.size(), ' ') +
                         std::string("\x80\x3f\x00\xc0", 4));
  ASSERT_TRUE(WriteSafetensors({.file = path_}, matrix.view()).ok());
  EXPECT_TRUE(ReadSafetensors({.file = path_, .tensor = "matrix"}, {}).ok());
}

TEST_F(SafetensorsTest, WhatIsWrittenIsReadBack) {
  EXPECT_TRUE(rc::check("round trip", [this] {
    const int64_t rows = *rc::gen::inRange<int64_t>(0, 9);
    const int64_t cols = *rc::gen::inRange<int64_t>(0, 9);
    const DType dtype = *rc::gen::element(DType::kBf16, DType::kFp32);
    Matrix matrix(rows, cols, cols + *rc::gen::inRange<int64_t>(0, 3), dtype);
    FillNormal(matrix, *rc::gen::arbitrary<uint64_t>());
    MatrixView view = matrix.view();
    view.transposed = *rc::gen::arbitrary<bool>();
    const std::string name = *rc::gen::element<std::string>("w", "a.b:c", "ä\n\"", "");
    RC_ASSERT(WriteSafetensors({.file = path_, .tensor = name}, view).ok());
    const absl::StatusOr<Matrix> read = ReadSafetensors({.file = path_, .tensor = name}, {});
    RC_ASSERT(read.ok());
    RC_ASSERT(read->dtype() == dtype);
    RC_ASSERT(read->rows() == view.op_rows());
    RC_ASSERT(read->cols() == view.op_cols());
    for (int64_t i = 0; i < view.op_rows(); ++i) {
      for (int64_t j = 0; j < view.op_cols(); ++j) {
        RC_ASSERT(ElementAt(read->view(), i, j) == ElementAt(view, i, j));
      }
    }
  }));
  EXPECT_EQ(FilesInFolder(), 1);  // no temporary is left
}

TEST_F(SafetensorsTest, AFailedWriteLeavesTheOldFileAndNothingElse) {
  Matrix matrix(2, 2, DType::kFp32);
  FillNormal(matrix, 1);
  ASSERT_TRUE(WriteSafetensors({.file = path_}, matrix.view()).ok());
  const std::string before = Bytes();
  for (const char* name : {"__metadata__", "\xff"}) {
    EXPECT_EQ(WriteSafetensors({.file = path_, .tensor = name}, matrix.view()).code(),
              absl::StatusCode::kInvalidArgument);
  }
  const Matrix bytes(1, 1, DType::kInt8);
  EXPECT_EQ(WriteSafetensors({.file = path_}, bytes.view()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Bytes(), before);
  EXPECT_EQ(FilesInFolder(), 1);
  const std::string nowhere = (folder_ / "none" / "x.safetensors").string();
  EXPECT_EQ(WriteSafetensors({.file = nowhere}, matrix.view()).code(), absl::StatusCode::kNotFound);
}

TEST_F(SafetensorsTest, MatrixFilesGoByTheirNames) {
  Matrix matrix(2, 3, DType::kFp32);
  FillNormal(matrix, 1);
  const std::string npy = (folder_ / "x.npy").string();
  for (const std::string& path : {path_, path_ + ":w", npy}) {
    ASSERT_TRUE(WriteMatrixFile(path, matrix.view()).ok());
    const absl::StatusOr<NpyMatrix> read = ReadMatrixFile(path, {});
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(ElementAt(read->view(), 1, 2), ElementAt(matrix.view(), 1, 2));
  }
  EXPECT_EQ(Bytes().substr(8, 4), "{\"w\"");
  EXPECT_EQ(FileOf(path_ + ":w"), path_);
  EXPECT_EQ(FileOf(npy + ":w"), npy + ":w");
  EXPECT_FALSE(ReadMatrixFile(path_, {.max_bytes = 23}).ok());
}

}  // namespace
}  // namespace tcgemm
