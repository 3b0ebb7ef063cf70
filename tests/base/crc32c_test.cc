#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace tcgemm {
namespace {

// RFC 3720, appendix B.4; "123456789" is the check value of the CRC catalogues.
TEST(Crc32cTest, GivesTheKnownValues) {
  const std::string digits = "123456789";
  EXPECT_EQ(Crc32c(digits.data(), digits.size()), 0xe3069283u);
  std::vector<uint8_t> bytes(32, 0);
  EXPECT_EQ(Crc32c(bytes.data(), 32), 0x8a9136aau);
  bytes.assign(32, 0xff);
  EXPECT_EQ(Crc32c(bytes.data(), 32), 0x62a8ab43u);
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  EXPECT_EQ(Crc32c(bytes.data(), 32), 0x46dd794eu);
  EXPECT_EQ(Crc32c(nullptr, 0), 0u);
}

TEST(Crc32cTest, PiecesGiveTheSumOfTheWholeAtEveryCut) {
  std::vector<uint8_t> bytes(41);
  std::iota(bytes.begin(), bytes.end(), uint8_t{7});
  const uint32_t whole = Crc32c(bytes.data(), bytes.size());
  EXPECT_EQ(ExtendCrc32cByTable(0, bytes.data(), bytes.size()), whole);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    const uint32_t first = Crc32c(bytes.data(), cut);
    EXPECT_EQ(ExtendCrc32c(first, bytes.data() + cut, bytes.size() - cut), whole) << cut;
    EXPECT_EQ(ExtendCrc32cByTable(first, bytes.data() + cut, bytes.size() - cut), whole) << cut;
  }
}

TEST(Crc32cTest, ACopyHasTheSameSumAndBytes) {
  std::vector<uint8_t> bytes(300);
  std::iota(bytes.begin(), bytes.end(), uint8_t{5});
  for (size_t begin = 0; begin < 9; ++begin) {
    for (const size_t size : {0, 1, 7, 8, 9, 63, 64, 65, 291}) {
      std::vector<uint8_t> copy(size + 2, 0xee);
      EXPECT_EQ(CopyWithCrc32c(77, copy.data() + 1, bytes.data() + begin, size),
                ExtendCrc32c(77, bytes.data() + begin, size));
      EXPECT_EQ(std::vector<uint8_t>(copy.begin() + 1, copy.end() - 1),
                std::vector<uint8_t>(bytes.begin() + begin, bytes.begin() + begin + size));
      EXPECT_EQ(copy.front(), 0xee);
      EXPECT_EQ(copy.back(), 0xee);
    }
  }
}

}  // namespace
}  // namespace tcgemm
