#include "server/telemetry/gpu_account.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tcgemm {
namespace {

constexpr TimePoint kStart{std::chrono::seconds(100)};
constexpr Nanos kStale = std::chrono::seconds(5);

GpuReading WithEcc(uint64_t corrected, uint64_t uncorrected) {
  GpuReading reading;
  reading.ecc_corrected = corrected;
  reading.ecc_uncorrected = uncorrected;
  return reading;
}

TEST(GpuAccountTest, IsDownAndEmptyFromTheStart) {
  const GpuSnapshot snapshot = GpuAccount(kStale).At(kStart);
  EXPECT_FALSE(snapshot.up);
  EXPECT_FALSE(snapshot.reading.temperature_celsius.has_value());
  EXPECT_EQ(snapshot.xid_errors, 0u);
}

TEST(GpuAccountTest, AReadingIsFreshForAWhile) {
  GpuAccount account(kStale);
  GpuReading reading;
  reading.temperature_celsius = 41;
  account.OnReading(reading, kStart);
  EXPECT_TRUE(account.At(kStart).up);
  EXPECT_EQ(account.At(kStart + kStale).reading.temperature_celsius, 41);
  const GpuSnapshot stale = account.At(kStart + kStale + Nanos(1));
  EXPECT_FALSE(stale.up);
  EXPECT_FALSE(stale.reading.temperature_celsius.has_value());
  account.OnReading(reading, kStart + 2 * kStale);
  EXPECT_TRUE(account.At(kStart + 2 * kStale).up);
  account.OnFailure();
  EXPECT_FALSE(account.At(kStart + 2 * kStale).up);
}

TEST(GpuAccountTest, CountsEccErrorsFromTheFirstReadingOn) {
  GpuAccount account(kStale);
  account.OnReading(WithEcc(1000, 3), kStart);
  EXPECT_EQ(account.At(kStart).ecc_corrected, 0u);
  account.OnReading(WithEcc(1007, 3), kStart);
  account.OnReading(GpuReading{}, kStart);  // not told this time
  account.OnReading(WithEcc(1010, 5), kStart);
  EXPECT_EQ(account.At(kStart).ecc_corrected, 10u);
  EXPECT_EQ(account.At(kStart).ecc_uncorrected, 2u);
  account.OnReading(WithEcc(4, 0), kStart);  // the driver was loaded anew
  EXPECT_EQ(account.At(kStart).ecc_corrected, 14u);
  EXPECT_EQ(account.At(kStart).ecc_uncorrected, 2u);
}

TEST(GpuAccountTest, CountsOutliveTheReadings) {
  GpuAccount account(kStale);
  account.OnReading(WithEcc(0, 0), kStart);
  account.OnReading(WithEcc(2, 1), kStart);
  account.OnXids({13, 79});
  account.OnXids({});
  account.OnFailure();
  const GpuSnapshot snapshot = account.At(kStart);
  EXPECT_FALSE(snapshot.up);
  EXPECT_EQ(snapshot.ecc_corrected, 2u);
  EXPECT_EQ(snapshot.ecc_uncorrected, 1u);
  EXPECT_EQ(snapshot.xid_errors, 2u);
  EXPECT_EQ(snapshot.last_xid, 79u);
}

TEST(GpuAccountTest, EachReasonHasAName) {
  std::set<std::string> names;
  for (int i = 0; i < kThrottleReasonCount; ++i) {
    names.insert(ThrottleReasonName(static_cast<ThrottleReason>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kThrottleReasonCount));
  EXPECT_EQ(names.count("unknown"), 0u);
}

}  // namespace
}  // namespace tcgemm
