#include "base/stream_copy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace tcgemm {
namespace {

constexpr uint8_t kGuard = 0xA5;

// Around a line and several, from and to any place in one, and not a byte beyond.
TEST(StreamCopyTest, CopiesAnySizeBetweenAnyAlignments) {
  constexpr size_t kMost = 9 * 64 + 3;
  std::vector<uint8_t> source(kMost + 64);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 7 + 1);
  for (size_t bytes = 0; bytes <= kMost; bytes += bytes < 70 ? 1 : 29) {
    for (const size_t from : {0, 1, 17, 63}) {
      for (const size_t to : {0, 1, 16, 63}) {
        std::vector<uint8_t> target(kMost + 192, kGuard);
        StreamCopy(target.data() + 64 + to, source.data() + from, bytes);
        for (size_t i = 0; i < target.size(); ++i) {
          const bool inside = i >= 64 + to && i < 64 + to + bytes;
          ASSERT_EQ(target[i], inside ? source[from + i - 64 - to] : kGuard)
              << bytes << " bytes from +" << from << " to +" << to << ", byte " << i;
        }
      }
    }
  }
}

TEST(StreamCopyTest, NothingFromNowhere) { StreamCopy(nullptr, nullptr, 0); }

}  // namespace
}  // namespace tcgemm
