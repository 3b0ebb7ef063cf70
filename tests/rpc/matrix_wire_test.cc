#include "server/rpc/matrix_wire.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/crc32c.h"

namespace tcgemm {
namespace {

using absl::StatusCode;
using v1::UploadMatrixRequest;

// The message in pieces of random sizes.
struct Pieces {
  explicit Pieces(std::string bytes, uint32_t seed = 1) : text(std::move(bytes)) {
    std::mt19937 random(seed);
    for (size_t at = 0; at < text.size();) {
      const size_t size = std::min<size_t>(text.size() - at, random() % 7);
      spans.push_back({reinterpret_cast<const uint8_t*>(text.data()) + at, size});
      at += size;
    }
  }
  std::string text;
  std::vector<ByteSpan> spans;
};

UploadMatrixRequest Range(int64_t offset, const std::string& data) {
  UploadMatrixRequest request;
  request.mutable_range()->set_offset(offset);
  request.mutable_range()->set_crc32c(Crc32c(data.data(), data.size()));
  request.mutable_range()->set_data(data);
  return request;
}

std::string Join(const std::vector<HostBytes>& parts) {
  std::string all;
  for (const HostBytes& part : parts) {
    all.append(reinterpret_cast<const char*>(part.data()), part.size());
  }
  return all;
}

TEST(MatrixWireTest, ReadsARangeWhereItLies) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    const std::string data(1 + seed * 3, static_cast<char>('a' + seed % 20));
    const Pieces message(Range(1234567890123, data).SerializeAsString(), seed);
    const auto part = ParseUploadPart(message.spans);
    ASSERT_TRUE(part.ok()) << part.status();
    ASSERT_TRUE(part->range.has_value());
    EXPECT_FALSE(part->header.has_value());
    EXPECT_EQ(part->range->offset, 1234567890123);
    const auto bytes = CheckRange(message.spans, *part->range);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    EXPECT_EQ(Join(*bytes), data);
  }
}

TEST(MatrixWireTest, TheLastMemberOfTheOneofWins) {
  UploadMatrixRequest header;
  header.mutable_header()->set_name("w");
  header.mutable_header()->set_rows(7);
  const std::string a = header.SerializeAsString();
  const std::string b = Range(5, "xyz").SerializeAsString();
  const Pieces both(a + b);
  EXPECT_TRUE(ParseUploadPart(both.spans)->range.has_value());
  EXPECT_FALSE(ParseUploadPart(both.spans)->header.has_value());
  const Pieces other(b + a);
  EXPECT_EQ(ParseUploadPart(other.spans)->header->name(), "w");
  EXPECT_FALSE(ParseUploadPart(other.spans)->range.has_value());
  EXPECT_FALSE(ParseUploadPart({})->range.has_value());
}

TEST(MatrixWireTest, RefusesWhatIsNoMessage) {
  const std::string good = Range(5, "xyz").SerializeAsString();
  for (size_t length = 1; length < good.size(); ++length) {
    const Pieces cut(good.substr(0, length));
    EXPECT_EQ(ParseUploadPart(cut.spans).status().code(), StatusCode::kInvalidArgument) << length;
  }
  UploadMatrixRequest header;
  header.mutable_header()->set_name(std::string(5000, 'x'));
  const Pieces large(header.SerializeAsString());
  EXPECT_EQ(ParseUploadPart(large.spans).status().code(), StatusCode::kInvalidArgument);
}

TEST(MatrixWireTest, ChecksARange) {
  const auto check = [](UploadMatrixRequest request) {
    const Pieces message(request.SerializeAsString());
    return CheckRange(message.spans, *ParseUploadPart(message.spans)->range).status();
  };
  EXPECT_TRUE(check(Range(0, "abc")).ok());
  EXPECT_EQ(check(Range(0, "")).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(check(Range(-1, "abc")).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(check(Range(0, std::string(kMaxRangeBytes + 1, 'x'))).code(),
            StatusCode::kResourceExhausted);
  UploadMatrixRequest damaged = Range(0, "abc");
  damaged.mutable_range()->set_data("abd");
  EXPECT_EQ(check(damaged).code(), StatusCode::kDataLoss);
}

TEST(MatrixWireTest, ChecksAHeader) {
  UploadMatrixRequest::Header good;
  good.set_name("w");
  good.set_rows(3);
  good.set_cols(4);
  good.set_dtype(v1::BF16);
  good.set_ttl_seconds(9);
  const auto spec = SpecOf(good);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name, "w");
  EXPECT_EQ(spec->rows, 3);
  EXPECT_EQ(spec->cols, 4);
  EXPECT_EQ(spec->ttl, std::chrono::seconds(9));
  const auto code = [&](auto change) {
    UploadMatrixRequest::Header header = good;
    change(header);
    return SpecOf(header).status().code();
  };
  EXPECT_EQ(code([](auto& h) { h.set_rows(0); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& h) { h.set_rows(int64_t{1} << 31); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& h) { h.set_cols(-1); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& h) { h.set_ttl_seconds(-1); }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& h) { h.set_ttl_seconds(int64_t{1} << 31); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& h) { h.set_dtype(v1::DTYPE_UNSPECIFIED); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& h) { h.set_dtype(static_cast<v1::DType>(99)); }),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& h) { h.set_dtype(v1::FP32); }), StatusCode::kUnimplemented);
}

TEST(MatrixWireTest, ChecksWhatANewMatrixMayNotHave) {
  UploadMatrixRequest::Header good;
  good.set_name("w");
  good.set_rows(3);
  good.set_cols(4);
  good.set_dtype(v1::BF16);
  good.set_creation_key(std::string(64, '\xff'));
  EXPECT_EQ(SpecOf(good)->creation_key, good.creation_key());
  UploadMatrixRequest::Header header = good;
  header.set_creation_key(std::string(65, 'k'));
  EXPECT_EQ(SpecOf(header).status().code(), StatusCode::kInvalidArgument);
  header = good;
  header.set_name("");
  EXPECT_EQ(SpecOf(header).status().code(), StatusCode::kInvalidArgument) << "a key without a name";
  header = good;
  header.set_generation(1);
  EXPECT_EQ(SpecOf(header).status().code(), StatusCode::kInvalidArgument);
}

// Who knows no pages is never shown a part.
TEST(MatrixWireTest, PagesHaveALimitAndTheWholeListHasItsOwn) {
  v1::ListMatricesRequest request;
  EXPECT_EQ(*PageLimitOf(request), static_cast<size_t>(ResidentStore::kMaxMatrices));
  request.set_page_size(7);
  EXPECT_EQ(*PageLimitOf(request), 7u);
  request.set_page_size(1000);
  EXPECT_EQ(*PageLimitOf(request), 1000u);
  request.set_page_size(1001);
  EXPECT_EQ(*PageLimitOf(request), 1000u);
  request.set_page_size(-1);
  EXPECT_EQ(PageLimitOf(request).status().code(), StatusCode::kInvalidArgument);
  request.set_page_size(1);
  request.set_page_token(std::string(128, 'x'));
  EXPECT_TRUE(PageLimitOf(request).ok());
  request.set_page_token(std::string(129, 'x'));
  EXPECT_EQ(PageLimitOf(request).status().code(), StatusCode::kInvalidArgument);
}

TEST(MatrixWireTest, AChunkIsWhatProtobufReads) {
  const std::string data(200, 'z');
  const std::string bytes =
      EncodeChunkHeader({.offset = 7, .crc32c = 0xdeadbeef, .bytes = data.size()}) + data;
  v1::DownloadMatrixResponse chunk;
  ASSERT_TRUE(chunk.ParseFromString(bytes));
  EXPECT_EQ(chunk.offset(), 7);
  EXPECT_EQ(chunk.crc32c(), 0xdeadbeefu);
  EXPECT_EQ(chunk.data(), data);
  EXPECT_FALSE(chunk.has_info());
}

}  // namespace
}  // namespace tcgemm
