#include "server/rpc/wire_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tcgemm {
namespace {

// `bytes`, which must outlive the result, cut into pieces of `size`, with an empty piece between
// any two.
std::vector<ByteSpan> Cut(const std::string& bytes, size_t size) {
  std::vector<ByteSpan> pieces;
  for (size_t at = 0; at < bytes.size(); at += size) {
    pieces.push_back(
        {reinterpret_cast<const uint8_t*>(bytes.data()) + at, std::min(size, bytes.size() - at)});
    pieces.push_back({nullptr, 0});
  }
  return pieces;
}

TEST(WireCursorTest, ReadsVarintsAcrossPieces) {
  const std::string bytes("\x00\x7f\xac\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 14);
  for (const size_t size : {1, 2, 3, 100}) {
    const std::vector<ByteSpan> pieces = Cut(bytes, size);
    WireCursor cursor(pieces);
    std::vector<uint64_t> values;
    uint64_t value;
    while (cursor.remaining() > 0) {
      ASSERT_TRUE(cursor.ReadVarint(&value));
      values.push_back(value);
    }
    EXPECT_EQ(values, std::vector<uint64_t>({0, 127, 300, ~uint64_t{0}}));
    EXPECT_EQ(cursor.position(), bytes.size());
    EXPECT_FALSE(cursor.ReadVarint(&value));
  }
}

TEST(WireCursorTest, RefusesVarintsThatAreTooLongOrCutOff) {
  uint64_t value;
  const std::string eleven(11, '\x80');
  const auto pieces = Cut(eleven, 4);
  EXPECT_FALSE(WireCursor(pieces).ReadVarint(&value));
  const std::string two = "\xff\xff";
  const auto cut = Cut(two, 1);
  EXPECT_FALSE(WireCursor(cut).ReadVarint(&value));
}

TEST(WireCursorTest, SkipsAndReadsBytesAcrossPieces) {
  const std::string bytes = "0123456789";
  for (const size_t size : {1, 3, 10}) {
    const auto pieces = Cut(bytes, size);
    WireCursor cursor(pieces);
    char read[4];
    ASSERT_TRUE(cursor.Skip(3));
    ASSERT_TRUE(cursor.ReadBytes(read, 4));
    EXPECT_EQ(std::string(read, 4), "3456");
    EXPECT_EQ(cursor.position(), 7u);
    EXPECT_EQ(cursor.remaining(), 3u);
    EXPECT_FALSE(cursor.Skip(4));
    EXPECT_FALSE(cursor.ReadBytes(read, 4));
    EXPECT_TRUE(cursor.Skip(3));
    uint8_t byte;
    EXPECT_FALSE(cursor.ReadByte(&byte));
  }
}

TEST(WireCursorTest, ReadsLittleEndianFixed32) {
  const std::string one("\x00\x00\x80\x3f", 4);
  const auto pieces = Cut(one, 3);
  WireCursor cursor(pieces);
  WireReader reader(&cursor, 4);
  float value;
  ASSERT_TRUE(reader.ReadFloat(&value));
  EXPECT_EQ(value, 1.0f);
  EXPECT_FALSE(reader.ReadFloat(&value));
}

bool ReadsTag(const std::string& bytes, WireTag* tag) {
  const auto pieces = Cut(bytes, 1);
  WireCursor cursor(pieces);
  return WireReader(&cursor, bytes.size()).ReadTag(tag);
}

TEST(WireReaderTest, Tags) {
  WireTag tag;
  ASSERT_TRUE(ReadsTag("\x7a", &tag));  // 15, length-delimited
  EXPECT_EQ(tag.field, 15u);
  EXPECT_EQ(tag.type, WireType::kLengthDelimited);
  ASSERT_TRUE(ReadsTag("\xf8\xff\xff\xff\x0f", &tag));
  EXPECT_EQ(tag.field, (1u << 29) - 1);
  ASSERT_TRUE(ReadsTag("\xfa\x80\x80\x80\x10", &tag)) << "bits beyond 32 are dropped";
  EXPECT_EQ(tag.field, 15u);
  EXPECT_FALSE(ReadsTag("\xfa\x80\x80\x80\x80\x01", &tag)) << "six bytes";
  EXPECT_FALSE(ReadsTag(std::string("\x00", 1), &tag)) << "field 0";
  EXPECT_FALSE(ReadsTag("\x0e", &tag)) << "wire type 6";
  EXPECT_FALSE(ReadsTag("\x0f", &tag)) << "wire type 7";
}

bool Skips(const std::string& bytes) {
  const auto pieces = Cut(bytes, 2);
  WireCursor cursor(pieces);
  WireReader reader(&cursor, bytes.size());
  WireTag tag;
  return reader.ReadTag(&tag) && reader.SkipField(tag) && reader.done();
}

TEST(WireReaderTest, SkipsEveryKindOfField) {
  EXPECT_TRUE(Skips("\x08\xff\x01"));
  EXPECT_TRUE(
      Skips("\x09"
            "12345678"));
  EXPECT_TRUE(
      Skips("\x0a\x03"
            "abc"));
  EXPECT_TRUE(
      Skips("\x0d"
            "1234"));
  EXPECT_TRUE(Skips("\x0b\x08\x01\x13\x14\x0c")) << "a group with a group in it";
}

TEST(WireReaderTest, RefusesFieldsThatDoNotEnd) {
  EXPECT_FALSE(Skips("\x08\xff"));
  EXPECT_FALSE(
      Skips("\x09"
            "1234567"));
  EXPECT_FALSE(
      Skips("\x0a\x04"
            "abc"));
  EXPECT_FALSE(
      Skips("\x0d"
            "123"));
  EXPECT_FALSE(Skips("\x0b\x08\x01")) << "a group without an end";
  EXPECT_FALSE(Skips("\x0b\x14")) << "a group that ends as another";
  EXPECT_FALSE(Skips("\x0c")) << "an end without a group";
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += '\x0b';
  for (int i = 0; i < 200; ++i) deep += '\x0c';
  EXPECT_FALSE(Skips(deep)) << "deeper than protobuf allows";
}

TEST(WireReaderTest, StaysInsideItsMessage) {
  // A message of 2 bytes whose varint would need the third.
  const std::string bytes = "\x08\xff\x01";
  const auto pieces = Cut(bytes, 3);
  WireCursor cursor(pieces);
  WireReader reader(&cursor, 2);
  WireTag tag;
  ASSERT_TRUE(reader.ReadTag(&tag));
  uint64_t value;
  EXPECT_FALSE(reader.ReadVarint(&value));
}

}  // namespace
}  // namespace tcgemm
