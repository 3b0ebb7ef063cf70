#include "client/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <cstring>

#include "client/wire_reader.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm::client {
namespace {

using testing::HasSubstr;

std::string Joined(const EncodedRequest& request) {
  std::string bytes;
  for (absl::string_view piece : request.pieces()) bytes.append(piece.data(), piece.size());
  return bytes;
}

Matrix Filled(int64_t rows, int64_t cols, int64_t ld) {
  Matrix matrix(rows, cols, ld, DType::kBf16);
  FillNormal(matrix, 7);
  return matrix;
}

std::string Bytes(const MatrixView& view) {
  return {static_cast<const char*>(view.data), view.span_bytes()};
}

// Element by element, as the server will read it.
void ExpectSameElements(const v1::Operand& sent, const MatrixView& matrix) {
  const int64_t ld = sent.ld() == 0 ? sent.cols() : sent.ld();
  RC_ASSERT(sent.rows() == matrix.rows);
  RC_ASSERT(sent.cols() == matrix.cols);
  RC_ASSERT(sent.transposed() == matrix.transposed);
  RC_ASSERT(sent.dtype() == v1::BF16);
  RC_ASSERT(static_cast<int64_t>(sent.inline_().size()) ==
            ((sent.rows() - 1) * ld + sent.cols()) * 2);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    RC_ASSERT(std::memcmp(sent.inline_().data() + row * ld * 2,
                          static_cast<const char*>(matrix.data) + row * matrix.ld * 2,
                          matrix.cols * 2) == 0);
  }
}

RC_GTEST_PROP(EncodeTest, ProtobufReadsWhatWeWrite, ()) {
  const int64_t m = *rc::gen::inRange(1, 20), n = *rc::gen::inRange(1, 20);
  const int64_t k = *rc::gen::inRange(1, 200);
  const bool ta = *rc::gen::arbitrary<bool>(), tb = *rc::gen::arbitrary<bool>();
  const int64_t gap = *rc::gen::inRange(0, 80);
  const DType output = *rc::gen::element(DType::kBf16, DType::kFp32);
  const Matrix a = Filled(ta ? k : m, ta ? m : k, (ta ? m : k) + gap);
  const Matrix b = Filled(tb ? n : k, tb ? k : n, tb ? k : n);
  const MatrixView av = ta ? a.transposed_view() : a.view();
  const MatrixView bv = tb ? b.transposed_view() : b.view();
  const absl::StatusOr<EncodedRequest> request = EncodeMatmulRequest(av, bv, output);
  RC_ASSERT(request.ok());
  const std::string bytes = Joined(*request);
  RC_ASSERT(bytes.size() == request->bytes());
  v1::MatmulRequest parsed;
  RC_ASSERT(parsed.ParseFromString(bytes));
  RC_ASSERT(parsed.SerializeAsString() == bytes);
  RC_ASSERT(static_cast<int>(parsed.output_dtype()) == static_cast<int>(output));
  ExpectSameElements(parsed.a(), av);
  ExpectSameElements(parsed.b(), bv);
}

Matrix FilledAs(DType dtype, int64_t rows, int64_t cols, int64_t ld) {
  Matrix matrix(rows, cols, ld, dtype);
  FillNormal(matrix, 9);
  return matrix;
}

RC_GTEST_PROP(EncodeTest, ProtobufReadsTheEpilogueToo, ()) {
  const int64_t m = *rc::gen::inRange(1, 20), n = *rc::gen::inRange(1, 20);
  const int64_t gap = *rc::gen::inRange(0, 9);
  const DType types[] = {DType::kBf16, DType::kFp32};
  const DType c_type = types[*rc::gen::inRange(0, 2)], bias_type = types[*rc::gen::inRange(0, 2)];
  const bool column = *rc::gen::arbitrary<bool>();
  const Matrix a = Filled(m, 3, 3), b = Filled(3, n, n);
  const Matrix c = FilledAs(c_type, m, n, n + gap);
  const Matrix bias =
      column ? FilledAs(bias_type, m, 1, 1 + gap) : FilledAs(bias_type, 1, n, n + gap);
  Epilogue epilogue;
  epilogue.alpha = *rc::gen::element(1.0f, -2.5f, 0.0f);
  epilogue.beta = *rc::gen::element(0.0f, 1.0f, 0.3f);
  epilogue.c = c.view();
  if (*rc::gen::arbitrary<bool>()) epilogue.bias = bias.view();
  epilogue.activation = static_cast<Activation>(*rc::gen::inRange(0, 4));
  const bool fastest = *rc::gen::arbitrary<bool>();
  const auto request = EncodeMatmulRequest(a.view(), b.view(), DType::kBf16, epilogue, fastest);
  RC_ASSERT(request.ok());
  const std::string bytes = Joined(*request);
  RC_ASSERT(bytes.size() == request->bytes());
  v1::MatmulRequest parsed;
  RC_ASSERT(parsed.ParseFromString(bytes));
  RC_ASSERT(parsed.SerializeAsString() == bytes);
  RC_ASSERT(parsed.has_alpha() == (epilogue.alpha != 1));
  RC_ASSERT(!parsed.has_alpha() || parsed.alpha() == epilogue.alpha);
  RC_ASSERT(parsed.has_c() == (epilogue.beta != 0));
  RC_ASSERT(parsed.beta() == epilogue.beta);
  RC_ASSERT(parsed.has_bias() == epilogue.has_bias());
  RC_ASSERT(parsed.reduction() == (fastest ? v1::FASTEST : v1::REDUCTION_UNSPECIFIED));
  RC_ASSERT(static_cast<int>(parsed.activation()) == static_cast<int>(epilogue.activation));
  const auto expect_same = [](const v1::Operand& sent, const Matrix& matrix) {
    const auto size = static_cast<int64_t>(DTypeSize(matrix.dtype()));
    const int64_t ld = sent.ld() == 0 ? sent.cols() : sent.ld();
    RC_ASSERT(static_cast<int>(sent.dtype()) == static_cast<int>(matrix.dtype()));
    RC_ASSERT(sent.rows() == matrix.rows() && sent.cols() == matrix.cols());
    for (int64_t row = 0; row < matrix.rows(); ++row) {
      RC_ASSERT(std::memcmp(sent.inline_().data() + row * ld * size,
                            matrix.data<char>() + row * matrix.ld() * size,
                            static_cast<size_t>(matrix.cols() * size)) == 0);
    }
  };
  if (parsed.has_c()) expect_same(parsed.c(), c);
  if (parsed.has_bias()) expect_same(parsed.bias(), bias);
}

TEST(EncodeTest, RefusesAnEpilogueThatIsNone) {
  const Matrix a = Filled(3, 4, 4), b = Filled(4, 5, 5);
  const Matrix c(3, 5, DType::kFp32);
  const auto refusal = [&](const Epilogue& epilogue) {
    const auto request = EncodeMatmulRequest(a.view(), b.view(), DType::kBf16, epilogue);
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(request.status().message());
  };
  EXPECT_THAT(refusal({.beta = 1}), HasSubstr("c is 0x0, D is 3x5"));
  EXPECT_THAT(refusal({.bias = a.view()}), HasSubstr("bias is 3x4, D is 3x5"));
  Epilogue null = {.beta = 1, .c = c.view()};
  null.c.data = nullptr;
  EXPECT_THAT(refusal(null), HasSubstr("C.data is null"));
  // K = 1: small operands, and a C that no message holds.
  const char byte = 0;
  const MatrixView tall{.data = &byte, .rows = 65536, .cols = 1, .ld = 1};
  MatrixView wide = tall;
  wide.transposed = true;
  const MatrixView huge{.data = &byte, .rows = 65536, .cols = 65536, .ld = 65536};
  const auto too_large =
      EncodeMatmulRequest(tall, wide, DType::kBf16, {.beta = 1, .c = huge}).status();
  EXPECT_THAT(std::string(too_large.message()), HasSubstr("C 8589934592"));
}

bool Borrows(const EncodedRequest& request, const Matrix& matrix) {
  for (absl::string_view piece : request.pieces()) {
    if (piece.data() == matrix.data<char>()) return piece.size() == matrix.bytes();
  }
  return false;
}

TEST(EncodeTest, SmallGapsTravelWithoutACopyAndWideOnesDoNot) {
  const Matrix b = Filled(8, 4, 4);
  const Matrix quarter = Filled(5, 8, 10);
  const Matrix wide = Filled(5, 8, 11);
  const EncodedRequest stored = EncodeMatmulRequest(quarter.view(), b.view(), DType::kBf16).value();
  EXPECT_TRUE(Borrows(stored, quarter));
  EXPECT_TRUE(Borrows(stored, b));
  const EncodedRequest gathered = EncodeMatmulRequest(wide.view(), b.view(), DType::kBf16).value();
  EXPECT_FALSE(Borrows(gathered, wide));
  v1::MatmulRequest parsed;
  ASSERT_TRUE(parsed.ParseFromString(Joined(gathered)));
  EXPECT_EQ(parsed.a().ld(), 0);
  EXPECT_EQ(parsed.a().inline_().size(), 5u * 8 * 2);
  // The ld of a single row means nothing.
  const Matrix row = Filled(1, 8, 800);
  EXPECT_TRUE(Borrows(EncodeMatmulRequest(row.view(), b.view(), DType::kBf16).value(), row));
}

TEST(EncodeTest, RefusesWhatCannotBeMultiplied) {
  const Matrix a = Filled(3, 4, 4);
  const auto refusal = [](const MatrixView& x, const MatrixView& y, DType output = DType::kBf16) {
    const auto request = EncodeMatmulRequest(x, y, output);
    EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(request.status().message());
  };
  const MatrixView good = a.view();
  MatrixView bad = good;
  EXPECT_THAT(refusal(good, good), HasSubstr("3x4"));
  EXPECT_THAT(refusal(good, a.transposed_view(), DType::kInt8), HasSubstr("int8"));
  bad.dtype = DType::kFp32;
  EXPECT_THAT(refusal(bad, a.transposed_view()), HasSubstr("fp32"));
  for (const int64_t rows : {int64_t{0}, int64_t{-1}, int64_t{1} << 31}) {
    bad = good;
    bad.rows = rows;
    EXPECT_THAT(refusal(bad, a.transposed_view()), HasSubstr("A is"));
  }
  bad = good;
  bad.ld = 3;
  EXPECT_THAT(refusal(bad, a.transposed_view()), HasSubstr("ld"));
  bad = good;
  bad.data = nullptr;
  EXPECT_THAT(refusal(a.transposed_view(), bad), HasSubstr("B.data"));
}

TEST(EncodeTest, RefusesMoreThanAMessageHoldsBeforeTouchingIt) {
  const char byte = 0;
  const MatrixView huge{.data = &byte, .rows = 32768, .cols = 32768, .ld = 32768};
  const absl::Status two = EncodeMatmulRequest(huge, huge, DType::kBf16).status();
  EXPECT_EQ(two.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(two.message()), HasSubstr("2147483647"));
  // Sizes whose sum would wrap around.
  MatrixView most{.data = &byte, .rows = INT32_MAX, .cols = INT32_MAX, .ld = INT32_MAX};
  EXPECT_EQ(EncodeMatmulRequest(most, most, DType::kBf16).status().code(),
            absl::StatusCode::kInvalidArgument);
  most.ld += INT32_MAX / 4;
  EXPECT_EQ(EncodeMatmulRequest(most, most, DType::kBf16).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A response to a 3×2 product in fp32.
constexpr ExpectedProduct kExpected{.rows = 3, .cols = 2, .dtype = DType::kFp32};

v1::MatmulResponse Response() {
  v1::MatmulResponse response;
  response.set_rows(3);
  response.set_cols(2);
  response.set_dtype(v1::FP32);
  v1::Timings& timings = *response.mutable_timings();
  timings.set_receive_ns(1);
  timings.set_decode_ns(200);
  timings.set_queue_ns(30000);
  timings.set_copy_in_ns(4);
  timings.set_kernel_ns(int64_t{1} << 40);
  timings.set_verify_ns(6);
  timings.set_copy_out_ns(7);
  response.set_kernel("cpu_plain");
  response.set_tflops(0.25);
  response.set_batched_with(63);
  response.set_handle("h");
  response.set_d("0123456789abcdefghijklmn");
  return response;
}

// Cuts `bytes` at random; pieces may be empty.
std::vector<absl::string_view> Cut(absl::string_view bytes) {
  std::vector<absl::string_view> pieces;
  while (!bytes.empty()) {
    if (*rc::gen::arbitrary<bool>()) pieces.emplace_back();
    // Of small cases RapidCheck takes the smallest values: they must end too.
    const size_t size = *rc::gen::inRange<size_t>(1, std::min<size_t>(bytes.size(), 9) + 1);
    pieces.push_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return pieces;
}

RC_GTEST_PROP(DecodeTest, AnyCutGivesTheSame, ()) {
  const std::string bytes = Response().SerializeAsString();
  Matrix d;
  const absl::StatusOr<MatmulInfo> info = DecodeMatmulResponse(Cut(bytes), kExpected, d);
  RC_ASSERT(info.ok());
  RC_ASSERT(Bytes(d.view()) == Response().d());
  RC_ASSERT(info->kernel == "cpu_plain");
  RC_ASSERT(info->tflops == 0.25);
  RC_ASSERT(info->batched_with == 63);
  RC_ASSERT(info->receive == Nanos(1) && info->decode == Nanos(200));
  RC_ASSERT(info->queue == Nanos(30000) && info->copy_in == Nanos(4));
  RC_ASSERT(info->kernel_time == Nanos(int64_t{1} << 40));
  RC_ASSERT(info->verify == Nanos(6) && info->copy_out == Nanos(7));
}

absl::Status Decoded(const std::string& bytes) {
  Matrix d;
  const absl::string_view piece = bytes;
  return DecodeMatmulResponse({&piece, 1}, kExpected, d).status();
}

TEST(DecodeTest, EveryTruncationIsDataLoss) {
  const std::string bytes = Response().SerializeAsString();
  ASSERT_TRUE(Decoded(bytes).ok());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(Decoded(bytes.substr(0, size)))) << size;
  }
}

TEST(DecodeTest, AnotherProductIsDataLossAndLeavesDAlone) {
  v1::MatmulResponse response = Response();
  response.set_rows(2);
  EXPECT_THAT(std::string(Decoded(response.SerializeAsString()).message()), HasSubstr("2x2 fp32"));
  response = Response();
  response.set_dtype(v1::BF16);
  EXPECT_TRUE(absl::IsDataLoss(Decoded(response.SerializeAsString())));
  for (const size_t size : {0, 23, 25}) {
    response = Response();
    response.set_d(std::string(size, 'x'));
    const std::string bytes = response.SerializeAsString();
    Matrix d(1, 1, DType::kBf16);
    const absl::string_view piece = bytes;
    EXPECT_TRUE(absl::IsDataLoss(DecodeMatmulResponse({&piece, 1}, kExpected, d).status()));
    EXPECT_EQ(d.rows(), 1);
  }
}

TEST(DecodeTest, AnyOrderLastWinsUnknownSkipped) {
  v1::MatmulResponse early;
  early.set_rows(99);
  early.set_d("not this one");
  v1::MatmulResponse scalars = Response();
  scalars.clear_d();
  v1::MatmulResponse late;
  late.set_d(Response().d());
  // Fields 100 (varint), 101 (bytes), 102 (fixed32), 103 (fixed64); and rows as bytes.
  const std::string unknown =
      "\xa0\x06\x05"
      "\xaa\x06\x02xy"
      "\xb5\x06\1\2\3\4"
      "\xb9\x06\1\2\3\4\5\6\7\x08"
      "\x0a\x01z";
  const std::string bytes =
      early.SerializeAsString() + late.SerializeAsString() + unknown + scalars.SerializeAsString();
  v1::MatmulResponse oracle;
  ASSERT_TRUE(oracle.ParseFromString(bytes));
  EXPECT_EQ(oracle.rows(), 3);
  EXPECT_TRUE(Decoded(bytes).ok()) << Decoded(bytes);
}

RC_GTEST_PROP(DecodeTest, ChangedBytesNeverCrash, ()) {
  std::string bytes = Response().SerializeAsString();
  const int changes = *rc::gen::inRange(1, 6);
  for (int i = 0; i < changes; ++i) {
    bytes[*rc::gen::inRange<size_t>(0, bytes.size())] = *rc::gen::arbitrary<char>();
  }
  Matrix d;
  const absl::Status status = DecodeMatmulResponse(Cut(bytes), kExpected, d).status();
  RC_ASSERT(status.ok() || absl::IsDataLoss(status));
}

RC_GTEST_PROP(DecodeTest, GarbageNeverCrashes, (const std::string& bytes)) {
  Matrix d;
  RC_ASSERT(absl::IsDataLoss(DecodeMatmulResponse(Cut(bytes), kExpected, d).status()));
}

TEST(WireReaderTest, VarintsOfTenBytesAndNotMore) {
  const std::string longest = std::string(9, '\xff') + "\x01";
  const absl::string_view good = longest;
  WireReader reader({&good, 1});
  EXPECT_EQ(reader.ReadVarint(), UINT64_MAX);
  EXPECT_TRUE(reader.ok());
  const std::string eleven = std::string(10, '\xff') + "\x01";
  const absl::string_view bad = eleven;
  WireReader failing({&bad, 1});
  failing.ReadVarint();
  EXPECT_FALSE(failing.ok());
  EXPECT_EQ(failing.ReadTag(), 0u);
}

TEST(WireReaderTest, RefusesLengthsBeyondTheEndAndFieldZero) {
  for (const std::string& bytes : {std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", 10),
                                   std::string("\x0a\x02x"), std::string("\x00\x01", 2),
                                   std::string("\x0b"), std::string("\x0c"), std::string("\x0f")}) {
    const absl::string_view piece = bytes;
    WireReader reader({&piece, 1});
    while (const uint32_t tag = reader.ReadTag()) reader.Skip(tag);
    EXPECT_FALSE(reader.ok()) << testing::PrintToString(bytes);
  }
}

TEST(HealthWireTest, BothMessages) {
  EXPECT_EQ(EncodeHealthCheckRequest(""), "");
  EXPECT_EQ(EncodeHealthCheckRequest("abc"),
            "\x0a\x03"
            "abc");
  const auto decode = [](const std::string& bytes) {
    const absl::string_view piece = bytes;
    return DecodeHealthCheckResponse({&piece, 1});
  };
  EXPECT_EQ(decode("").value(), Health::kUnknown);
  EXPECT_EQ(decode("\x08\x01").value(), Health::kServing);
  EXPECT_EQ(decode("\x08\x02").value(), Health::kNotServing);
  EXPECT_EQ(decode("\x08\x03").value(), Health::kUnknown);
  EXPECT_TRUE(absl::IsDataLoss(decode("\x08").status()));
}

}  // namespace
}  // namespace tcgemm::client
