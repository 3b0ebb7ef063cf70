#include "matrix/bf16.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tcgemm {
namespace {

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(Bf16Test, EveryPatternRoundTrips) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const Bf16 x{static_cast<uint16_t>(bits)};
    ASSERT_EQ(ToBf16(ToFloat(x)).bits, bits);
    ASSERT_EQ(std::bit_cast<uint32_t>(ToFloat(x)), bits << 16);
  }
}

TEST(Bf16Test, KnownValues) {
  EXPECT_EQ(ToBf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(ToBf16(-2.5f).bits, 0xc020);
  EXPECT_EQ(ToBf16(0.0f).bits, 0x0000);
  EXPECT_EQ(ToBf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(ToFloat(Bf16{0x4049}), 3.140625f);
}

TEST(Bf16Test, TiesGoToEven) {
  EXPECT_EQ(ToBf16(FromBits(0x3f808000)).bits, 0x3f80);  // even below stays
  EXPECT_EQ(ToBf16(FromBits(0x3f818000)).bits, 0x3f82);  // odd below goes up
  EXPECT_EQ(ToBf16(FromBits(0xbf818000)).bits, 0xbf82);  // the same in magnitude
  EXPECT_EQ(ToBf16(FromBits(0x3f807fff)).bits, 0x3f80);  // just below the tie
  EXPECT_EQ(ToBf16(FromBits(0x3f808001)).bits, 0x3f81);  // just above it
  EXPECT_EQ(ToBf16(FromBits(0x3fff8000)).bits, 0x4000);  // the carry reaches the exponent
}

TEST(Bf16Test, OverflowGivesInf) {
  EXPECT_EQ(ToBf16(FromBits(0x7f7f7fff)).bits, 0x7f7f);  // still rounds to the largest
  EXPECT_EQ(ToBf16(FromBits(0x7f7f8000)).bits, 0x7f80);
  EXPECT_EQ(ToBf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(ToBf16(-std::numeric_limits<float>::max()).bits, 0xff80);
  EXPECT_EQ(ToBf16(std::numeric_limits<float>::infinity()).bits, 0x7f80);
}

TEST(Bf16Test, NanStaysNanWithItsSignAndUpperPayload) {
  for (const uint32_t sign : {0u, 0x80000000u}) {
    for (uint32_t bit = 0; bit < 23; ++bit) {
      const Bf16 x = ToBf16(FromBits(sign | 0x7f800000u | (1u << bit)));
      EXPECT_TRUE(std::isnan(ToFloat(x))) << "payload bit " << bit;
      EXPECT_EQ(x.bits & 0x8000u, sign >> 16);
      // A payload in the lower half is lost and made quiet, one in the upper half is kept.
      EXPECT_EQ(x.bits & 0x7fu, bit < 16 ? 0x40u : 1u << (bit - 16));
    }
    EXPECT_TRUE(std::isnan(ToFloat(ToBf16(FromBits(sign | 0x7fffffffu)))));
  }
}

TEST(Bf16Test, CanonicalNanIsOneValueInBothTypes) {
  EXPECT_EQ(ToBf16(FromBits(kCanonicalNanFp32Bits)), kCanonicalNanBf16);
  EXPECT_EQ(std::bit_cast<uint32_t>(ToFloat(kCanonicalNanBf16)), kCanonicalNanFp32Bits);
}

TEST(Bf16Test, SubnormalsRoundAsNumbers) {
  EXPECT_EQ(ToBf16(FromBits(0x00000001)).bits, 0x0000);
  EXPECT_EQ(ToBf16(FromBits(0x00008000)).bits, 0x0000);  // a tie, to even
  EXPECT_EQ(ToBf16(FromBits(0x00008001)).bits, 0x0001);
  EXPECT_EQ(ToBf16(FromBits(0x00018000)).bits, 0x0002);
  EXPECT_EQ(ToBf16(FromBits(0x007fffff)).bits, 0x0080);  // up to the smallest normal
  EXPECT_EQ(ToBf16(FromBits(0x80008001)).bits, 0x8001);
}

TEST(Bf16Test, NothingIsNearerThanTheResult) {
  EXPECT_TRUE(rc::check("nearest", [](uint32_t bits) {
    const float x = FromBits(bits);
    RC_PRE(std::isfinite(x));
    const Bf16 rounded = ToBf16(x);
    RC_PRE(std::isfinite(ToFloat(rounded)));
    const double error = std::abs(double{ToFloat(rounded)} - x);
    for (const int step : {-1, 1}) {
      const Bf16 neighbour{static_cast<uint16_t>(rounded.bits + step)};
      if (!std::isfinite(ToFloat(neighbour))) continue;
      RC_ASSERT(error <= std::abs(double{ToFloat(neighbour)} - x));
    }
  }));
}

}  // namespace
}  // namespace tcgemm
