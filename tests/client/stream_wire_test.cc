#include "client/stream_wire.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm::client {
namespace {

// `text` in pieces of random sizes.
std::vector<absl::string_view> Cut(const std::string& text, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<absl::string_view> pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t size = std::min<size_t>(text.size() - at, random() % 9);
    pieces.emplace_back(text.data() + at, size);
    at += size;
  }
  return pieces;
}

std::string Join(const std::vector<absl::string_view>& pieces) {
  std::string all;
  for (absl::string_view piece : pieces) all.append(piece.data(), piece.size());
  return all;
}

TEST(ClientStreamWireTest, HeadersAreWhatProtobufReads) {
  StreamedProduct product;
  product.a = {.rows = 2'000'000'000, .cols = 7, .transposed = true};
  product.b = {.handle = "w", .transposed = true};
  product.output = DType::kFp32;
  product.keep = true;
  v1::MatmulStreamRequest message;
  ASSERT_TRUE(message.ParseFromString(EncodeStreamHeader(product)));
  EXPECT_EQ(message.header().a().rows(), 2'000'000'000);
  EXPECT_TRUE(message.header().a().transposed());
  EXPECT_EQ(message.header().a().source_case(), v1::Operand::SOURCE_NOT_SET);
  EXPECT_EQ(message.header().b().handle(), "w");
  EXPECT_EQ(message.header().b().rows(), 0);
  EXPECT_EQ(message.header().output_dtype(), v1::FP32);
  EXPECT_EQ(message.header().output().target_case(), v1::OutputTarget::kHandle);
  EXPECT_FALSE(message.header().has_alpha() || message.header().has_beta());
  EXPECT_FALSE(message.header().has_c() || message.header().has_bias());

  product.epilogue = {.alpha = 2,
                      .beta = -1,
                      .c = Factor{.handle = "c"},
                      .bias = Factor{.handle = "bias"},
                      .activation = Activation::kGelu};
  ASSERT_TRUE(message.ParseFromString(EncodeStreamHeader(product)));
  EXPECT_EQ(message.header().alpha(), 2);
  EXPECT_EQ(message.header().beta(), -1);
  EXPECT_EQ(message.header().c().handle(), "c");
  EXPECT_EQ(message.header().bias().handle(), "bias");
  EXPECT_EQ(message.header().activation(), v1::GELU);
}

TEST(ClientStreamWireTest, PanelsAreWhatProtobufReads) {
  for (const size_t bytes : {1, 127, 128, 70000}) {
    const std::string data(bytes, 'x');
    v1::MatmulStreamRequest message;
    ASSERT_TRUE(
        message.ParseFromString(EncodePanelStart(StreamField::kB, 3'000'000'000, data) + data));
    EXPECT_EQ(message.b().offset(), 3'000'000'000);
    EXPECT_EQ(message.b().data(), data);
    EXPECT_EQ(message.b().crc32c(), Crc32c(data.data(), data.size()));
    ASSERT_TRUE(message.ParseFromString(EncodePanelStart(StreamField::kA, 0, data) + data));
    EXPECT_TRUE(message.has_a());
  }
}

TEST(ClientStreamWireTest, ReadsWhatProtobufWrites) {
  v1::MatmulStreamResponse panel;
  panel.mutable_d()->set_offset(5'000'000'000);
  panel.mutable_d()->set_crc32c(0xfedcba98);
  panel.mutable_d()->set_data(std::string(300, 'd'));
  v1::MatmulStreamResponse header;
  header.mutable_header()->set_rows(11);
  header.mutable_header()->set_cols(12);
  header.mutable_header()->set_dtype(v1::FP32);
  header.mutable_header()->set_kernel("k");
  header.mutable_header()->set_handle("h");
  header.mutable_header()->mutable_timings()->set_copy_out_ns(7);
  for (uint32_t seed = 0; seed < 30; ++seed) {
    const std::string p = panel.SerializeAsString();
    const auto read = DecodeStreamResponse(Cut(p, seed));
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_TRUE(read->panel.has_value() && !read->header.has_value());
    EXPECT_EQ(read->panel->offset, 5'000'000'000u);
    EXPECT_EQ(read->panel->crc32c, 0xfedcba98);
    EXPECT_EQ(Join(read->panel->data), panel.d().data());
    const std::string h = header.SerializeAsString();
    const auto head = DecodeStreamResponse(Cut(h, seed));
    ASSERT_TRUE(head.ok() && head->header.has_value());
    EXPECT_EQ(head->header->rows, 11);
    EXPECT_EQ(head->header->dtype, DType::kFp32);
    EXPECT_EQ(head->header->handle, "h");
    EXPECT_EQ(head->header->info.kernel, "k");
    EXPECT_EQ(head->header->info.copy_out, Nanos(7));
    // Cut short anywhere, neither is a message any more, or it is an empty one.
    for (size_t end = 1; end < p.size(); end += 17) {
      EXPECT_FALSE(DecodeStreamResponse(Cut(p.substr(0, end), seed)).ok());
    }
  }
  EXPECT_TRUE(DecodeStreamResponse({}).ok());
}

}  // namespace
}  // namespace tcgemm::client
