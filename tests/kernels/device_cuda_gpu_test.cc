// device_cuda on a GPU: memory, copies, events, launches. Skipped where there is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "kernels/device_cuda.h"
#include "tests/kernels/product.h"

namespace tcgemm {
namespace {

using ::testing::HasSubstr;

constexpr Nanos kLong = std::chrono::seconds(20);

class DeviceCudaGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const absl::Status usable = CudaDeviceUsable(0);
    if (!usable.ok()) GTEST_SKIP() << usable.message();
    static Device* const device = [] {
      absl::StatusOr<std::unique_ptr<Device>> made = CreateCudaDevice(0);
      EXPECT_TRUE(made.ok()) << made.status();
      return made.ok() ? made->release() : nullptr;
    }();
    ASSERT_NE(device, nullptr);
    device_ = device;
    stream_ = *device_->CreateStream();
    event_ = *device_->CreateEvent();
  }

  void Finish() {
    ASSERT_TRUE(device_->Record(*stream_, *event_).ok());
    const absl::Status status = device_->Wait(*event_, kLong);
    ASSERT_TRUE(status.ok()) << status;
  }

  Device* device_ = nullptr;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> event_;
};

// A product of the host's memory carried to the device, at the device's pitch, and back.
class Carried {
 public:
  Carried(Device& device, Stream& stream, Product& product)
      : device_(device), stream_(stream), host_(product.Prepare()), on_device_(host_) {
    on_device_.a = In(host_.a);
    on_device_.b = In(host_.b);
    on_device_.d.ld = Pitch(host_.d.cols);
    on_device_.d.data = Allocate(host_.d.rows * on_device_.d.ld * DTypeSize(host_.d.dtype));
    on_device_.nonfinite = static_cast<uint32_t*>(Allocate(4));
    Copy(on_device_.nonfinite, host_.nonfinite);
  }

  const GemmProblem& problem() const { return on_device_; }

  void TakeBack() {
    const size_t element = DTypeSize(host_.d.dtype);
    const Copy2d copy = {.destination = host_.d.data,
                         .source = on_device_.d.data,
                         .destination_pitch = host_.d.ld * element,
                         .source_pitch = on_device_.d.ld * element,
                         .row_bytes = host_.d.cols * element,
                         .rows = host_.d.rows};
    EXPECT_TRUE(device_.CopyOut(stream_, copy).ok());
  }

 private:
  static int64_t Pitch(int64_t columns) { return (columns + 63) / 64 * 64; }
  void* Allocate(size_t bytes) {
    memory_.push_back(*device_.AllocateDevice(bytes));
    return memory_.back().data();
  }
  void Copy(void* to, const void* from) {
    EXPECT_TRUE(device_.CopyIn(stream_, {to, from, 0, 0, 4, 1}).ok());
  }
  MatrixView In(const MatrixView& from) {
    MatrixView to = from;
    to.ld = Pitch(from.cols);
    void* data = Allocate(from.rows * to.ld * 2);
    to.data = data;
    const Copy2d copy = {.destination = data,
                         .source = from.data,
                         .destination_pitch = static_cast<size_t>(to.ld) * 2,
                         .source_pitch = static_cast<size_t>(from.ld) * 2,
                         .row_bytes = static_cast<size_t>(from.cols) * 2,
                         .rows = from.rows};
    EXPECT_TRUE(device_.CopyIn(stream_, copy).ok());
    return to;
  }

  Device& device_;
  Stream& stream_;
  GemmProblem host_;
  GemmProblem on_device_;
  std::vector<MemoryBlock> memory_;
};

TEST_F(DeviceCudaGpuTest, DescribesItself) {
  const DeviceInfo& info = device_->info();
  EXPECT_EQ(info.name, "cuda:0");
  EXPECT_EQ(info.backend, "cuda");
  EXPECT_THAT(info.description, HasSubstr(", sm_"));
  EXPECT_FALSE(info.unified_memory);
  EXPECT_EQ(info.pitch_alignment, 64);
  EXPECT_GT(info.flops_per_second, 1e12) << info.description;
  EXPECT_LT(info.flops_per_second, 1e16) << info.description;
  EXPECT_TRUE(device_->healthy());
  EXPECT_GT(device_->plan_limits().multiprocessors, 0);
  std::printf("%s, %.0f TFLOPS, NUMA node %d\n", info.description.c_str(),
              info.flops_per_second / 1e12, info.numa_node);
}

TEST_F(DeviceCudaGpuTest, MemoryIsAlignedAndPinnedMemoryZero) {
  for (size_t bytes : {size_t{1}, size_t{4096}, size_t{5'000'001}}) {
    const absl::StatusOr<MemoryBlock> pinned = device_->AllocatePinned(bytes);
    ASSERT_TRUE(pinned.ok()) << pinned.status();
    EXPECT_EQ(pinned->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pinned->data()) % 4096, 0u);
    EXPECT_EQ(pinned->data()[bytes - 1], std::byte{0});
    const absl::StatusOr<MemoryBlock> memory = device_->AllocateDevice(bytes);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 256, 0u);
  }
  EXPECT_EQ(device_->AllocatePinned(0)->data(), nullptr);
  EXPECT_EQ(device_->AllocateDevice(0)->data(), nullptr);
}

TEST_F(DeviceCudaGpuTest, TooMuchMemoryIsAnErrorAndNothingBreaks) {
  for (size_t bytes : {size_t{1} << 46, SIZE_MAX - 4095, SIZE_MAX}) {
    EXPECT_TRUE(absl::IsResourceExhausted(device_->AllocatePinned(bytes).status()));
    EXPECT_TRUE(absl::IsResourceExhausted(device_->AllocateDevice(bytes).status()));
  }
  EXPECT_TRUE(device_->healthy());
  EXPECT_TRUE(device_->AllocateDevice(4096).ok());
}

TEST_F(DeviceCudaGpuTest, CopiesRowsAtAnyPitch) {
  struct Pitches {
    size_t to, on_device, back;
  };
  constexpr size_t kRow = 100;
  constexpr int64_t kRows = 7;
  for (const Pitches& p : {Pitches{100, 100, 100}, {128, 128, 100}, {104, 256, 111}}) {
    const MemoryBlock source = *device_->AllocatePinned(p.to * kRows);
    const MemoryBlock memory = *device_->AllocateDevice(p.on_device * kRows);
    const MemoryBlock back = *device_->AllocatePinned(p.back * kRows);
    for (size_t i = 0; i < source.bytes(); ++i) source.data()[i] = std::byte(i * 7 % 251);
    const Copy2d in = {memory.data(), source.data(), p.on_device, p.to, kRow, kRows};
    ASSERT_TRUE(device_->CopyIn(*stream_, in).ok());
    const Copy2d out = {back.data(), memory.data(), p.back, p.on_device, kRow, kRows};
    ASSERT_TRUE(device_->CopyOut(*stream_, out).ok());
    Finish();
    for (int64_t row = 0; row < kRows; ++row) {
      EXPECT_EQ(std::memcmp(back.data() + row * p.back, source.data() + row * p.to, kRow), 0);
      if (p.back != p.on_device && row + 1 < kRows) {
        EXPECT_EQ(back.data()[row * p.back + kRow], std::byte{0}) << p.back;
      }
    }
  }
  EXPECT_TRUE(device_->CopyIn(*stream_, Copy2d{}).ok());
  EXPECT_TRUE(device_->CopyOut(*stream_, Copy2d{}).ok());
}

TEST_F(DeviceCudaGpuTest, EveryKernelThatItCanLaunchIsRight) {
  std::vector<KernelId> kernels = device_->plan_limits().kernels;
  kernels.push_back(KernelId::kSimt);
  for (KernelId kernel : kernels) {
    Product product({.m = 145, .n = 70, .k = 270}, {.a_transposed = true, .gap = 3});
    Carried carried(*device_, *stream_, product);
    PlanLimits limits = device_->plan_limits();
    limits.kernels = {kernel};
    const Plan plan = *ChoosePlan(limits, {&carried.problem(), 1});
    const absl::Status status = device_->Launch(*stream_, plan, {&carried.problem(), 1});
    ASSERT_TRUE(status.ok()) << status;
    carried.TakeBack();
    Finish();
    product.ExpectRight();
  }
}

TEST_F(DeviceCudaGpuTest, MapsAreEncodedOnceAStream) {
  if (device_->plan_limits().kernels[0] != KernelId::kTmaMma) GTEST_SKIP() << "no TMA";
  Product product({.m = 64, .n = 64, .k = 64}, {});
  Carried carried(*device_, *stream_, product);
  const Plan plan = *ChoosePlan(device_->plan_limits(), {&carried.problem(), 1});
  const TensorMapCounts before = device_->tensor_map_counts();
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(device_->Launch(*stream_, plan, {&carried.problem(), 1}).ok());
  }
  Finish();
  EXPECT_EQ(device_->tensor_map_counts().misses - before.misses, 2);
  EXPECT_EQ(device_->tensor_map_counts().hits - before.hits, 4);
}

// A product of some 100 ms: simt at the size of a large one.
TEST_F(DeviceCudaGpuTest, WaitEndsAtItsLimitAndEventsMeasure) {
  constexpr int64_t kSide = 8192;
  const MemoryBlock memory = *device_->AllocateDevice(size_t{kSide} * kSide * 8);
  GemmProblem problem;
  problem.a = {memory.data(), kSide, kSide, kSide, DType::kBf16, false};
  problem.b = {memory.data(), kSide, kSide, kSide, DType::kBf16, false};
  problem.d = {memory.data() + size_t{kSide} * kSide * 4, kSide, kSide, kSide, DType::kFp32, false};
  PlanLimits limits = device_->plan_limits();
  limits.kernels = {KernelId::kSimt};
  const std::unique_ptr<Event> start = *device_->CreateEvent();
  EXPECT_FALSE(device_->Elapsed(*start, *event_).ok()) << "never recorded";
  ASSERT_TRUE(device_->Record(*stream_, *start).ok());
  const Plan plan = *ChoosePlan(limits, {&problem, 1});
  ASSERT_TRUE(device_->Launch(*stream_, plan, {&problem, 1}).ok());
  ASSERT_TRUE(device_->Record(*stream_, *event_).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(device_->Wait(*event_, std::chrono::milliseconds(1))));
  EXPECT_FALSE(device_->Elapsed(*start, *event_).ok()) << "not reached";
  ASSERT_TRUE(device_->Wait(*event_, kLong).ok());
  const absl::StatusOr<Nanos> elapsed = device_->Elapsed(*start, *event_);
  ASSERT_TRUE(elapsed.ok()) << elapsed.status();
  EXPECT_GT(*elapsed, std::chrono::milliseconds(1));
  EXPECT_TRUE(device_->healthy());
}

// An error that CUDA returned once must not come back from the next launch.
TEST_F(DeviceCudaGpuTest, ErrorsDoNotLinger) {
  EXPECT_FALSE(device_->Elapsed(*event_, *event_).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(device_->AllocateDevice(size_t{1} << 46).status()));
  Product product({.m = 16, .n = 16, .k = 16}, {});
  Carried carried(*device_, *stream_, product);
  const Plan plan = *ChoosePlan(device_->plan_limits(), {&carried.problem(), 1});
  EXPECT_TRUE(device_->Launch(*stream_, plan, {&carried.problem(), 1}).ok());
  Finish();
}

TEST_F(DeviceCudaGpuTest, ThreadsWithStreamsOfTheirOwn) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      const std::unique_ptr<Stream> stream = *device_->CreateStream();
      const std::unique_ptr<Event> event = *device_->CreateEvent();
      for (int round = 0; round < 20; ++round) {
        Product product({.m = 40 + i, .n = 70, .k = 100 + round}, {});
        Carried carried(*device_, *stream, product);
        const Plan plan = *ChoosePlan(device_->plan_limits(), {&carried.problem(), 1});
        ASSERT_TRUE(device_->Launch(*stream, plan, {&carried.problem(), 1}).ok());
        carried.TakeBack();
        ASSERT_TRUE(device_->Record(*stream, *event).ok());
        ASSERT_TRUE(device_->Wait(*event, kLong).ok());
        product.ExpectRight();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tcgemm
