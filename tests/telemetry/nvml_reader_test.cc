#include "server/telemetry/nvml_reader.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/telemetry/nvml_abi.h"
#include "tests/telemetry/fake_nvml.h"

namespace tcgemm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kPciId[] = "0000:00:00.0";

// The fake's side of the library; the reader loads the same one by its path.
class NvmlReaderTest : public ::testing::Test {
 protected:
  NvmlReaderTest() : library_(dlopen(FAKE_NVML_LIBRARY, RTLD_NOW | RTLD_LOCAL)) {
    EXPECT_NE(library_, nullptr);
    Control<decltype(FakeNvmlReset)>("FakeNvmlReset")();
  }
  ~NvmlReaderTest() override {
    EXPECT_EQ(Control<decltype(FakeNvmlOpen)>("FakeNvmlOpen")(), 0);
    dlclose(library_);
  }

  template <typename Function>
  Function* Control(const char* name) {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }
  void Answer(const char* function, int code, unsigned long long value = 0) {
    Control<decltype(FakeNvmlAnswer)>("FakeNvmlAnswer")(function, code, value);
  }
  void Xid(unsigned long long xid) { Control<decltype(FakeNvmlXid)>("FakeNvmlXid")(xid); }
  static absl::StatusOr<std::unique_ptr<GpuReader>> Open(const std::string& pci_id = kPciId) {
    return OpenNvml({.library = FAKE_NVML_LIBRARY, .pci_id = pci_id});
  }

 private:
  void* const library_;
};

TEST_F(NvmlReaderTest, ReadsEverythingInBaseUnits) {
  const std::unique_ptr<GpuReader> reader = *Open();
  const GpuReading reading = *reader->Read();
  EXPECT_DOUBLE_EQ(*reading.utilization, 0.37);
  EXPECT_EQ(reading.memory_used_bytes, 5e9);
  EXPECT_EQ(reading.memory_total_bytes, 150e9);
  EXPECT_DOUBLE_EQ(*reading.power_watts, 300.5);
  EXPECT_DOUBLE_EQ(*reading.power_limit_watts, 700);
  EXPECT_EQ(reading.sm_clock_hertz, 1755e6);
  EXPECT_EQ(reading.max_sm_clock_hertz, 1980e6);
  EXPECT_EQ(reading.temperature_celsius, 41);
  EXPECT_EQ(reading.ecc_corrected, 7u);
  EXPECT_EQ(reading.ecc_uncorrected, 0u);
  EXPECT_THAT(*reading.throttle,
              ElementsAre(false, false, true, false, false, false, false, false, false));
}

TEST_F(NvmlReaderTest, EachBitIsItsReason) {
  const std::unique_ptr<GpuReader> reader = *Open();
  for (int i = 0; i < kThrottleReasonCount; ++i) {
    Answer("nvmlDeviceGetCurrentClocksEventReasons", 0, nvml::kThrottleBits[i]);
    const GpuReading reading = *reader->Read();
    for (int j = 0; j < kThrottleReasonCount; ++j) EXPECT_EQ((*reading.throttle)[j], i == j);
  }
  // In the order of the enum.
  EXPECT_EQ(nvml::kThrottleBits[static_cast<int>(ThrottleReason::kHwThermal)], 0x40u);
}

TEST_F(NvmlReaderTest, WhatTheDeviceDoesNotSupportIsNotThere) {
  const std::unique_ptr<GpuReader> reader = *Open();
  for (const char* function :
       {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo",
        "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTotalEccErrors.0",
        "nvmlDeviceGetTotalEccErrors.1"}) {
    Answer(function, nvml::kNotSupported);
  }
  const GpuReading reading = *reader->Read();
  EXPECT_FALSE(reading.utilization.has_value());
  EXPECT_FALSE(reading.memory_used_bytes.has_value());
  EXPECT_FALSE(reading.memory_total_bytes.has_value());
  EXPECT_FALSE(reading.power_watts.has_value());
  EXPECT_FALSE(reading.power_limit_watts.has_value());
  EXPECT_FALSE(reading.sm_clock_hertz.has_value());
  EXPECT_FALSE(reading.max_sm_clock_hertz.has_value());
  EXPECT_FALSE(reading.throttle.has_value());
  EXPECT_FALSE(reading.ecc_corrected.has_value());
  EXPECT_FALSE(reading.ecc_uncorrected.has_value());
  EXPECT_EQ(reading.temperature_celsius, 41);
  // Nothing at all is no reading.
  Answer("nvmlDeviceGetTemperature", nvml::kNotSupported);
  EXPECT_TRUE(absl::IsUnavailable(reader->Read().status()));
}

TEST_F(NvmlReaderTest, WhatCannotBeIsNotThere) {
  const std::unique_ptr<GpuReader> reader = *Open();
  constexpr unsigned long long kUnknown = 0xffffffff;
  Answer("nvmlDeviceGetUtilizationRates", 0, 101);
  Answer("nvmlDeviceGetMemoryInfo", 0, 150'000'000'001);
  Answer("nvmlDeviceGetPowerUsage", 0, 10'000'001);
  Answer("nvmlDeviceGetEnforcedPowerLimit", 0, kUnknown);
  Answer("nvmlDeviceGetClockInfo", 0, kUnknown);
  Answer("nvmlDeviceGetMaxClockInfo", 0, 10'001);
  Answer("nvmlDeviceGetTemperature", 0, 201);
  const GpuReading reading = *reader->Read();
  EXPECT_FALSE(reading.utilization.has_value());
  EXPECT_FALSE(reading.memory_used_bytes.has_value());
  EXPECT_FALSE(reading.power_watts.has_value());
  EXPECT_FALSE(reading.power_limit_watts.has_value());
  EXPECT_FALSE(reading.sm_clock_hertz.has_value());
  EXPECT_FALSE(reading.max_sm_clock_hertz.has_value());
  EXPECT_FALSE(reading.temperature_celsius.has_value());
  EXPECT_TRUE(reading.throttle.has_value());
  // At the limit they are.
  Answer("nvmlDeviceGetUtilizationRates", 0, 100);
  Answer("nvmlDeviceGetMemoryInfo", 0, 150'000'000'000);
  Answer("nvmlDeviceGetPowerUsage", 0, 10'000'000);
  Answer("nvmlDeviceGetClockInfo", 0, 10'000);
  Answer("nvmlDeviceGetTemperature", 0, 200);
  const GpuReading hot = *reader->Read();
  EXPECT_EQ(hot.utilization, 1);
  EXPECT_EQ(hot.memory_used_bytes, 150e9);
  EXPECT_EQ(hot.power_watts, 10'000);
  EXPECT_EQ(hot.sm_clock_hertz, 10e9);
  EXPECT_EQ(hot.temperature_celsius, 200);
}

TEST_F(NvmlReaderTest, AnUnknownErrorOfOneFieldIsThatFieldsAlone) {
  const std::unique_ptr<GpuReader> reader = *Open();
  Answer("nvmlDeviceGetPowerUsage", 999);
  const GpuReading reading = *reader->Read();
  EXPECT_FALSE(reading.power_watts.has_value());
  EXPECT_TRUE(reading.temperature_celsius.has_value());
}

TEST_F(NvmlReaderTest, ALostGpuGivesNoReading) {
  const std::unique_ptr<GpuReader> reader = *Open();
  Answer("nvmlDeviceGetTemperature", nvml::kGpuIsLost);
  const absl::Status status = reader->Read().status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("as the test said (15)"));
}

TEST_F(NvmlReaderTest, TakesEachXidOnce) {
  const std::unique_ptr<GpuReader> reader = *Open();
  EXPECT_THAT(*reader->TakeXids(), IsEmpty());
  Xid(13);
  Xid(79);
  EXPECT_THAT(*reader->TakeXids(), ElementsAre(13, 79));
  EXPECT_THAT(*reader->TakeXids(), IsEmpty());
}

TEST_F(NvmlReaderTest, AFloodOfXidsIsTakenInParts) {
  const std::unique_ptr<GpuReader> reader = *Open();
  for (int i = 0; i < 100; ++i) Xid(31);
  const size_t first = reader->TakeXids()->size();
  EXPECT_LT(first, 100u);
  EXPECT_EQ(first + reader->TakeXids()->size(), 100u);
}

TEST_F(NvmlReaderTest, WithoutEventsThereAreNoXids) {
  Answer("nvmlDeviceRegisterEvents", nvml::kNotSupported);
  const std::unique_ptr<GpuReader> reader = *Open();
  Xid(79);
  EXPECT_THAT(*reader->TakeXids(), IsEmpty());
  EXPECT_TRUE(reader->Read().ok());
}

TEST_F(NvmlReaderTest, WaitingForEventsOfALostGpuFails) {
  const std::unique_ptr<GpuReader> reader = *Open();
  Answer("nvmlEventSetWait_v2", nvml::kGpuIsLost);
  EXPECT_TRUE(absl::IsUnavailable(reader->TakeXids().status()));
  Answer("nvmlEventSetWait_v2", 999);
  EXPECT_THAT(*reader->TakeXids(), IsEmpty());
}

TEST_F(NvmlReaderTest, SaysWhyItCannotBeOpened) {
  const absl::Status nowhere = Open("0000:01:00.0").status();
  EXPECT_TRUE(absl::IsUnavailable(nowhere));
  EXPECT_THAT(std::string(nowhere.message()), HasSubstr("no GPU at 0000:01:00.0"));
  Answer("nvmlInit_v2", nvml::kDriverNotLoaded);
  const absl::Status not_started = Open().status();
  EXPECT_TRUE(absl::IsUnavailable(not_started));
  EXPECT_THAT(std::string(not_started.message()), HasSubstr("it does not start"));
}

TEST_F(NvmlReaderTest, NoLibraryIsNotFound) {
  const absl::Status absent =
      OpenNvml({.library = "libno-such-library.so.1", .pci_id = kPciId}).status();
  EXPECT_TRUE(absl::IsNotFound(absent));
  EXPECT_THAT(std::string(absent.message()), HasSubstr("libno-such-library.so.1"));
  // A library, but another one.
  const absl::Status other = OpenNvml({.library = "libm.so.6", .pci_id = kPciId}).status();
  EXPECT_TRUE(absl::IsNotFound(other));
  EXPECT_THAT(std::string(other.message()), HasSubstr("libm.so.6 has not the functions"));
}

}  // namespace
}  // namespace tcgemm
