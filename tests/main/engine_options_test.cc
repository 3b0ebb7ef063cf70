#include "server/main/engine_options.h"

#include <gtest/gtest.h>

namespace tcgemm {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(EngineOptionsTest, TakesWhatFlagsSay) {
  ServerOptions options;
  options.max_batch = 7;
  options.max_queue_delay_us = 11;
  options.pinned_bytes = 64 * kMiB;
  options.device_bytes = 128 * kMiB;
  options.resident_bytes = 32 * kMiB;
  options.small_batch_bytes = 3;
  const EngineOptions engine = EngineOptionsOf(options);
  EXPECT_EQ(engine.max_batch, 7);
  EXPECT_EQ(engine.max_queue_delay, std::chrono::microseconds(11));
  EXPECT_EQ(engine.pinned_bytes, 64 * kMiB);
  EXPECT_EQ(engine.device_bytes, 128 * kMiB);
  EXPECT_EQ(engine.resident_bytes, 32 * kMiB);
  EXPECT_EQ(engine.in_place_bytes, 3u);
}

TEST(EngineOptionsTest, DeviceMemoryFollowsThePinnedPool) {
  ServerOptions options;
  options.device_bytes = 0;
  options.pinned_bytes = 64 * kMiB;
  const auto slots = static_cast<uint64_t>(EngineOptions().slots);
  EXPECT_EQ(EngineOptionsOf(options).device_bytes, slots * 65 * kMiB);
  options.pinned_bytes = 8192 * kMiB;
  EXPECT_EQ(EngineOptionsOf(options).device_bytes, slots * 2048 * kMiB);
}

}  // namespace
}  // namespace tcgemm
