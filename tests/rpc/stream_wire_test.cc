#include "server/rpc/stream_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {
namespace {

using absl::StatusCode;
using testing::HasSubstr;
using v1::MatmulStreamRequest;
using v1::MatmulStreamResponse;

// The message in pieces of random sizes.
struct Pieces {
  explicit Pieces(std::string bytes, uint32_t seed = 1) : text(std::move(bytes)) {
    std::mt19937 random(seed);
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::min<size_t>(text.size() - at, random() % 9);
      spans.push_back({reinterpret_cast<const uint8_t*>(text.data()) + at, size});
      at += size;
    }
  }
  std::string text;
  std::vector<ByteSpan> spans;
};

std::string PanelOfB(int64_t offset, const std::string& data, bool crc = true) {
  MatmulStreamRequest request;
  request.mutable_b()->set_offset(offset);
  request.mutable_b()->set_data(data);
  if (crc) request.mutable_b()->set_crc32c(Crc32c(data.data(), data.size()));
  return request.SerializeAsString();
}

std::string Join(const std::vector<HostBytes>& parts) {
  std::string all;
  for (const HostBytes& part : parts) {
    all.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  return all;
}

TEST(StreamWireTest, ReadsAPanelWhereItLies) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const std::string data(1 + seed * 5, static_cast<char>('a' + seed % 20));
    const Pieces message(PanelOfB(9'876'543'210, data, seed % 2 == 0), seed);
    const auto part = ParseStreamPart(message.spans);
    ASSERT_TRUE(part.ok()) << part.status();
    ASSERT_TRUE(part->b.has_value());
    EXPECT_FALSE(part->a.has_value() || part->header.has_value());
    EXPECT_EQ(part->b->offset, 9'876'543'210);
    EXPECT_EQ(part->b->crc32c.has_value(), seed % 2 == 0);
    EXPECT_EQ(part->b->bytes, data.size());
    const std::vector<HostBytes> bytes = BytesOf(message.spans, *part->b);
    EXPECT_EQ(Join(bytes), data);
    EXPECT_TRUE(CheckCrc("b", *part->b, bytes).ok());
  }
}

TEST(StreamWireTest, ReadsAHeaderThatComesInParts) {
  MatmulStreamRequest first;
  first.mutable_header()->mutable_a()->set_rows(7);
  first.mutable_header()->mutable_b()->set_handle("w");
  MatmulStreamRequest second;
  second.mutable_header()->mutable_a()->set_cols(9);
  second.mutable_header()->set_output_dtype(v1::FP32);
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Pieces message(first.SerializeAsString() + second.SerializeAsString(), seed);
    const auto part = ParseStreamPart(message.spans);
    ASSERT_TRUE(part.ok()) << part.status();
    ASSERT_TRUE(part->header.has_value());
    EXPECT_EQ(part->header->a.rows, 7);
    EXPECT_EQ(part->header->a.cols, 9);
    EXPECT_EQ(part->header->b.handle, "w");
    EXPECT_EQ(part->header->output_dtype, v1::FP32);
  }
}

TEST(StreamWireTest, TheLastMemberOfTheOneofWins) {
  MatmulStreamRequest header;
  header.mutable_header()->set_output_dtype(v1::FP32);
  MatmulStreamRequest a;
  a.mutable_a()->set_data("xy");
  const std::string h = header.SerializeAsString();
  const std::string p = a.SerializeAsString();
  const auto last = [](const std::string& bytes) {
    const Pieces message(bytes);
    const StreamPart part = ParseStreamPart(message.spans).value();
    MatmulStreamRequest judge;
    EXPECT_TRUE(judge.ParseFromString(bytes));
    EXPECT_EQ(part.header.has_value(), judge.has_header());
    EXPECT_EQ(part.a.has_value(), judge.has_a());
    EXPECT_EQ(part.b.has_value(), judge.has_b());
    return part;
  };
  EXPECT_TRUE(last(h + p).a.has_value());
  EXPECT_TRUE(last(p + h).header.has_value());
  EXPECT_TRUE(last(p + PanelOfB(0, "z")).b.has_value());
  EXPECT_TRUE(last(PanelOfB(0, "z") + p + h + PanelOfB(0, "z")).b.has_value());
  // What came before another member is gone: no old offset in the new panel.
  EXPECT_EQ(last(PanelOfB(5, "z") + h + PanelOfB(0, "z")).b->offset, 0);
  EXPECT_FALSE(last("").header.has_value());
}

TEST(StreamWireTest, NoMessageIsAnError) {
  MatmulStreamRequest header;
  header.mutable_header()->mutable_a()->set_rows(1);
  const std::string good = PanelOfB(3, "abcdef");
  for (const std::string& bad :
       {good.substr(0, good.size() - 1), std::string("\x0a\x05\x01", 3), std::string("\x1f", 1),
        std::string("\x0a\x02\x0a\x09", 4), std::string("\x12\x03\x0d\x01\x02", 5)}) {
    const Pieces message(bad);
    EXPECT_EQ(ParseStreamPart(message.spans).status().code(), StatusCode::kInvalidArgument);
    EXPECT_FALSE(MatmulStreamRequest().ParseFromString(bad));
  }
}

// Whatever comes: protobuf says the same.
TEST(StreamWireTest, AgreesWithProtobufOnDamagedMessages) {
  std::mt19937 random(7);
  MatmulStreamRequest request;
  request.mutable_header()->mutable_a()->set_rows(300);
  request.mutable_header()->mutable_b()->set_handle("weights");
  const std::string header = request.SerializeAsString();
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = i % 2 == 0 ? header : PanelOfB(77, std::string(40, 'q'));
    for (uint32_t hits = random() % 3 + 1; hits > 0; --hits) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    MatmulStreamRequest judge;
    const bool expected = judge.ParseFromString(bytes);
    const Pieces message(bytes, random());
    const auto part = ParseStreamPart(message.spans);
    if (part.ok() && judge.has_b()) {
      ++parsed;
      ASSERT_TRUE(part->b.has_value());
      EXPECT_EQ(part->b->offset, judge.b().offset());
      EXPECT_EQ(Join(BytesOf(message.spans, *part->b)), judge.b().data());
    }
    // protobuf also wants strings to be UTF-8.
    if (expected) {
      EXPECT_TRUE(part.ok()) << part.status();
    }
  }
  EXPECT_GT(parsed, 1000);
}

TEST(StreamWireTest, PanelsComeInOrder) {
  PanelOrder order("a", 100);
  const auto take = [&order](int64_t offset, size_t bytes) {
    return order.Take({.offset = offset, .bytes = bytes});
  };
  EXPECT_TRUE(take(0, 60).ok());
  EXPECT_THAT(order.Describe(), HasSubstr("60 of 100 bytes of a"));
  struct Bad {
    int64_t offset;
    size_t bytes;
    StatusCode code;
    const char* words;
  };
  for (const Bad& bad : {Bad{60, 0, StatusCode::kInvalidArgument, "a.data is empty"},
                         Bad{0, 10, StatusCode::kInvalidArgument, "a.offset is 0, must be"},
                         Bad{61, 10, StatusCode::kInvalidArgument, "a.offset is 61"},
                         Bad{-1, 10, StatusCode::kInvalidArgument, "a.offset is -1"},
                         Bad{60, 41, StatusCode::kInvalidArgument, "but a has 100 in all"},
                         Bad{60, kMaxPanelBytes + 1, StatusCode::kResourceExhausted, "limit"}}) {
    const absl::Status status = take(bad.offset, bad.bytes);
    EXPECT_EQ(status.code(), bad.code) << bad.words;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.words));
  }
  EXPECT_FALSE(order.complete());
  EXPECT_TRUE(take(60, 40).ok()) << "a refused panel took nothing";
  EXPECT_TRUE(order.complete());
  EXPECT_EQ(take(100, 1).code(), StatusCode::kInvalidArgument);
}

TEST(StreamWireTest, AnotherCrcIsDataLoss) {
  const std::string data = "0123456789";
  const HostBytes bytes(reinterpret_cast<const std::byte*>(data.data()), data.size());
  const uint32_t right = Crc32c(data.data(), data.size());
  const auto check = [&bytes](std::optional<uint32_t> crc) {
    return CheckCrc("a", {.offset = 20, .crc32c = crc, .bytes = 10}, {&bytes, 1});
  };
  EXPECT_TRUE(check(right).ok());
  EXPECT_TRUE(check(std::nullopt).ok());
  for (const uint32_t wrong : {right + 1, uint32_t{0}}) {
    EXPECT_EQ(check(wrong).code(), StatusCode::kDataLoss);
    EXPECT_THAT(std::string(check(wrong).message()), HasSubstr("a.crc32c is"));
  }
}

TEST(StreamWireTest, ResultPanelsAreWhatProtobufReads) {
  for (const size_t bytes : {1, 100, 127, 128, 16384, 2097152}) {
    const std::string data(bytes, 'd');
    MatmulStreamResponse response;
    ASSERT_TRUE(response.ParseFromString(
        EncodeResultPanel({.offset = 5'000'000'000, .crc32c = 0x89abcdef, .bytes = bytes}) + data));
    ASSERT_TRUE(response.has_d());
    EXPECT_EQ(response.d().offset(), 5'000'000'000);
    EXPECT_EQ(response.d().crc32c(), 0x89abcdef);
    EXPECT_EQ(response.d().data(), data);
  }
}

TEST(StreamWireTest, HeadersSayWhatDIsAndWhereTheTimeWent) {
  MutableMatrixView d{.rows = 3'000'000'000 / 2, .cols = 7, .ld = 7, .dtype = DType::kFp32};
  MatmulStreamResponse first;
  ASSERT_TRUE(first.ParseFromString(EncodeFirstHeader(d)));
  EXPECT_EQ(first.header().rows(), 1'500'000'000);
  EXPECT_EQ(first.header().cols(), 7);
  EXPECT_EQ(first.header().dtype(), v1::FP32);
  EXPECT_FALSE(first.header().has_timings());
  StreamTimings timings{.receive = Nanos(10), .decode = Nanos(20), .kernel = "k"};
  timings.job.kernel = std::chrono::seconds(2);
  timings.job.queue = Nanos(30);
  timings.batched_with = 4;
  MatmulStreamResponse last;
  const GemmShape shape{.m = 1'000'000, .n = 1000, .k = 1000};
  ASSERT_TRUE(last.ParseFromString(EncodeLastHeader(shape, DType::kBf16, timings, "h")));
  EXPECT_EQ(last.header().rows(), 1'000'000);
  EXPECT_EQ(last.header().timings().receive_ns(), 10);
  EXPECT_EQ(last.header().timings().decode_ns(), 20);
  EXPECT_EQ(last.header().timings().queue_ns(), 30);
  EXPECT_DOUBLE_EQ(last.header().tflops(), 1.0) << "2·10^12 FLOPs in 2 s";
  EXPECT_EQ(last.header().kernel(), "k");
  EXPECT_EQ(last.header().batched_with(), 4);
  EXPECT_EQ(last.header().handle(), "h");
}

}  // namespace
}  // namespace tcgemm
