#include "server/telemetry/gpu_telemetry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace tcgemm {
namespace {

using ::testing::ElementsAre;

// A GPU that does what a test says, and tells what was asked of it. Thread-safe; shared with the
// thread that may be left behind.
class ScriptedGpu {
 public:
  void SetRead(absl::Status status) {
    MutexLock lock(&mutex_);
    read_status_ = std::move(status);
  }
  void SetOpen(absl::Status status) {
    MutexLock lock(&mutex_);
    open_status_ = std::move(status);
  }
  void AddXid(uint64_t xid) {
    MutexLock lock(&mutex_);
    xids_.push_back(xid);
  }
  void SetHanging(bool hanging) {
    MutexLock lock(&mutex_);
    hanging_ = hanging;
    changed_.NotifyAll();
  }
  void WaitForReads(int count) {
    MutexLock lock(&mutex_);
    while (reads_ < count) changed_.Wait(&mutex_);
  }
  void WaitForHang() {
    MutexLock lock(&mutex_);
    while (!hangs_) changed_.Wait(&mutex_);
  }
  void WaitForNoReader() {
    MutexLock lock(&mutex_);
    while (readers_ > 0) changed_.Wait(&mutex_);
  }
  int reads() {
    MutexLock lock(&mutex_);
    return reads_;
  }
  int readers() {
    MutexLock lock(&mutex_);
    return readers_;
  }

  absl::Status Open() {
    MutexLock lock(&mutex_);
    if (open_status_.ok()) ++readers_;
    return open_status_;
  }
  void Close() {
    MutexLock lock(&mutex_);
    --readers_;
    changed_.NotifyAll();
  }
  std::vector<uint64_t> TakeXids() {
    MutexLock lock(&mutex_);
    return std::exchange(xids_, {});
  }
  absl::Status Read() {
    MutexLock lock(&mutex_);
    hangs_ = hanging_;
    changed_.NotifyAll();
    while (hanging_) changed_.Wait(&mutex_);
    hangs_ = false;
    ++reads_;
    changed_.NotifyAll();
    return read_status_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  absl::Status open_status_ ABSL_GUARDED_BY(mutex_);
  absl::Status read_status_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> xids_ ABSL_GUARDED_BY(mutex_);
  bool hanging_ ABSL_GUARDED_BY(mutex_) = false;
  bool hangs_ ABSL_GUARDED_BY(mutex_) = false;
  int reads_ ABSL_GUARDED_BY(mutex_) = 0;
  int readers_ ABSL_GUARDED_BY(mutex_) = 0;
};

class ScriptedReader final : public GpuReader {
 public:
  explicit ScriptedReader(std::shared_ptr<ScriptedGpu> gpu) : gpu_(std::move(gpu)) {}
  ~ScriptedReader() override { gpu_->Close(); }
  absl::StatusOr<std::vector<uint64_t>> TakeXids() override { return gpu_->TakeXids(); }
  absl::StatusOr<GpuReading> Read() override {
    const absl::Status status = gpu_->Read();
    if (!status.ok()) return status;
    GpuReading reading;
    reading.temperature_celsius = 41;
    return reading;
  }

 private:
  const std::shared_ptr<ScriptedGpu> gpu_;
};

// What on_change was told, in order: codes.
class Changes {
 public:
  void Add(const absl::Status& status) {
    MutexLock lock(&mutex_);
    codes_.push_back(status.code());
    changed_.NotifyAll();
  }
  std::vector<absl::StatusCode> WaitFor(size_t count) {
    MutexLock lock(&mutex_);
    while (codes_.size() < count) changed_.Wait(&mutex_);
    return codes_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<absl::StatusCode> codes_ ABSL_GUARDED_BY(mutex_);
};

class GpuTelemetryTest : public ::testing::Test {
 protected:
  std::unique_ptr<GpuTelemetry> Start(Nanos stop_patience = std::chrono::hours(1)) {
    return std::make_unique<GpuTelemetry>(
        [gpu = gpu_]() -> absl::StatusOr<std::unique_ptr<GpuReader>> {
          const absl::Status status = gpu->Open();
          if (!status.ok()) return status;
          return std::make_unique<ScriptedReader>(gpu);
        },
        &clock_,
        GpuTelemetryOptions{.period = std::chrono::milliseconds(1),
                            .retry_period = std::chrono::milliseconds(1),
                            .stale_after = std::chrono::seconds(5),
                            .stop_patience = stop_patience,
                            .on_change = [changes = changes_](const absl::Status& status) {
                              changes->Add(status);
                            }});
  }

  FakeClock clock_;
  const std::shared_ptr<ScriptedGpu> gpu_ = std::make_shared<ScriptedGpu>();
  const std::shared_ptr<Changes> changes_ = std::make_shared<Changes>();
};

TEST_F(GpuTelemetryTest, ReadsAgainAndAgain) {
  gpu_->AddXid(13);
  const auto telemetry = Start();
  gpu_->WaitForReads(2);  // so the first has been published
  GpuSnapshot snapshot = telemetry->Latest();
  EXPECT_TRUE(snapshot.up);
  EXPECT_EQ(snapshot.reading.temperature_celsius, 41);
  EXPECT_EQ(snapshot.xid_errors, 1u);
  gpu_->AddXid(79);
  gpu_->WaitForReads(gpu_->reads() + 2);
  snapshot = telemetry->Latest();
  EXPECT_EQ(snapshot.xid_errors, 2u);
  EXPECT_EQ(snapshot.last_xid, 79u);
}

TEST_F(GpuTelemetryTest, EndsWithoutAReaderLeft) {
  {
    const auto telemetry = Start();
    gpu_->WaitForReads(1);
  }
  EXPECT_EQ(gpu_->readers(), 0);
}

TEST_F(GpuTelemetryTest, AFailureIsToldOnceAndSoIsItsEnd) {
  const auto telemetry = Start();
  gpu_->WaitForReads(2);
  gpu_->SetRead(absl::UnavailableError("lost"));
  changes_->WaitFor(1);
  EXPECT_FALSE(telemetry->Latest().up);
  gpu_->WaitForReads(gpu_->reads() + 3);  // each by a reader opened anew
  gpu_->SetRead(absl::OkStatus());
  EXPECT_THAT(changes_->WaitFor(2),
              ElementsAre(absl::StatusCode::kUnavailable, absl::StatusCode::kOk));
  EXPECT_TRUE(telemetry->Latest().up);
}

TEST_F(GpuTelemetryTest, ADriverThatComesLaterIsFound) {
  gpu_->SetOpen(absl::UnavailableError("not yet"));
  const auto telemetry = Start();
  changes_->WaitFor(1);
  EXPECT_FALSE(telemetry->Latest().up);
  gpu_->SetOpen(absl::OkStatus());
  changes_->WaitFor(2);
  EXPECT_TRUE(telemetry->Latest().up);
}

TEST_F(GpuTelemetryTest, WithoutALibraryItIsQuiet) {
  gpu_->SetOpen(absl::NotFoundError("no NVML"));
  const auto telemetry = Start();
  EXPECT_THAT(changes_->WaitFor(1), ElementsAre(absl::StatusCode::kNotFound));
  EXPECT_FALSE(telemetry->Latest().up);
  gpu_->SetOpen(absl::OkStatus());  // too late: the thread has ended, or will without asking again
  EXPECT_EQ(gpu_->reads(), 0);
}

TEST_F(GpuTelemetryTest, WhileItHangsEverybodyElseGoesOn) {
  const auto telemetry = Start();
  gpu_->WaitForReads(2);
  gpu_->AddXid(79);
  gpu_->SetHanging(true);
  gpu_->WaitForHang();
  EXPECT_TRUE(telemetry->Latest().up);  // the last reading is still fresh
  clock_.Advance(std::chrono::seconds(6));
  EXPECT_FALSE(telemetry->Latest().up);
  EXPECT_FALSE(telemetry->Latest().reading.temperature_celsius.has_value());
  gpu_->SetHanging(false);
  gpu_->WaitForReads(gpu_->reads() + 3);  // the first is as old as its question
  EXPECT_TRUE(telemetry->Latest().up);
  EXPECT_EQ(telemetry->Latest().last_xid, 79u);
}

TEST_F(GpuTelemetryTest, TheFirstAnswerIsWaitedForAndNoLonger) {
  gpu_->SetHanging(true);
  const auto telemetry = Start(/*stop_patience=*/Nanos(0));
  EXPECT_FALSE(telemetry->WaitForFirst(std::chrono::milliseconds(1)));
  gpu_->SetHanging(false);
  EXPECT_TRUE(telemetry->WaitForFirst(std::chrono::hours(1)));
  EXPECT_TRUE(telemetry->Latest().up);
}

TEST_F(GpuTelemetryTest, ABadFirstAnswerIsOneToo) {
  gpu_->SetOpen(absl::NotFoundError("no NVML"));
  EXPECT_TRUE(Start()->WaitForFirst(std::chrono::hours(1)));
}

TEST_F(GpuTelemetryTest, SaysWhetherTheThreadWasLeftBehind) {
  const auto ends = Start();
  EXPECT_TRUE(ends->Stop());
  EXPECT_TRUE(ends->Stop());
  const auto hangs = Start(/*stop_patience=*/Nanos(0));
  gpu_->SetHanging(true);
  gpu_->WaitForHang();
  EXPECT_FALSE(hangs->Stop());
  EXPECT_FALSE(hangs->Stop());
  gpu_->SetHanging(false);
  gpu_->WaitForNoReader();
}

TEST_F(GpuTelemetryTest, AHungCallDoesNotKeepTheEnd) {
  auto telemetry = Start(/*stop_patience=*/Nanos(0));
  gpu_->SetHanging(true);
  gpu_->WaitForHang();
  telemetry.reset();  // returns, and leaves the thread where it is
  EXPECT_EQ(changes_->WaitFor(0).size(), 0u);
  // What comes back finds that nobody waits any more, and tells nothing.
  gpu_->SetRead(absl::UnavailableError("lost"));
  gpu_->SetHanging(false);
  gpu_->WaitForNoReader();
  EXPECT_EQ(changes_->WaitFor(0).size(), 0u);
}

}  // namespace
}  // namespace tcgemm
