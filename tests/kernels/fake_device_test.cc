#include "tests/kernels/fake_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/kernels/product.h"

namespace tcgemm {
namespace {

constexpr Nanos kForever = Nanos::max();

// One 4×4 product, all in device memory of the fake.
class FakeDeviceTest : public testing::Test {
 protected:
  void Start(FakeDeviceOptions options = {}) {
    device_ = std::make_unique<FakeDevice>(std::move(options));
    stream_ = *device_->CreateStream();
    done_ = *device_->CreateEvent();
    host_ = *device_->AllocatePinned(4096);
    memory_ = *device_->AllocateDevice(4096);
    std::memset(host_.data(), 0, 4096);
    auto* elements = reinterpret_cast<uint16_t*>(host_.data());
    for (int i = 0; i < 4; ++i) {
      elements[i * 64 + i] = 0x4000;        // A = 2·I
      elements[(4 + i) * 64 + 1] = 0x4040;  // B = 3 in column 1
    }
    problem_.a = {memory_.data(), 4, 4, 64, DType::kBf16, false};
    problem_.b = {memory_.data() + 512, 4, 4, 64, DType::kBf16, false};
    problem_.d = {memory_.data() + 1024, 4, 4, 4, DType::kFp32, false};
  }

  absl::Status Queue() {
    absl::Status status =
        device_->CopyIn(*stream_, {memory_.data(), host_.data(), 1024, 1024, 1024, 1});
    const Plan plan = *ChoosePlan(device_->plan_limits(), {&problem_, 1});
    status.Update(device_->Launch(*stream_, plan, {&problem_, 1}));
    status.Update(device_->CopyOut(*stream_, {host_.data(), memory_.data() + 1024, 64, 64, 64, 1}));
    status.Update(device_->Record(*stream_, *done_));
    return status;
  }
  // The launch fails on the stream: held until all is queued, as a dead device takes no calls.
  absl::Status QueueAndWaitForFault() {
    device_->Hold(FakeOp::kLaunch);
    const absl::Status queued = Queue();
    EXPECT_TRUE(queued.ok()) << queued;
    EXPECT_TRUE(device_->healthy());
    device_->Release(FakeOp::kLaunch);
    return device_->Wait(*done_, kForever);
  }
  float Result(int at) const { return reinterpret_cast<const float*>(host_.data())[at]; }

  std::unique_ptr<FakeDevice> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> done_;
  MemoryBlock host_;
  MemoryBlock memory_;
  GemmProblem problem_;
};

TEST_F(FakeDeviceTest, ComputesAndCounts) {
  Start();
  ASSERT_TRUE(Queue().ok());
  ASSERT_TRUE(device_->Wait(*done_, kForever).ok());
  EXPECT_EQ(Result(1), 6.0f);
  EXPECT_EQ(Result(2), 0.0f);
  EXPECT_EQ(device_->batch_sizes(), std::vector<int>{1});
  EXPECT_EQ(device_->shapes()[0], (GemmShape{.m = 4, .n = 4, .k = 4}));
  EXPECT_EQ(device_->calls(FakeOp::kCopyIn), 1);
  EXPECT_EQ(device_->device_bytes(), 4096u);
  EXPECT_EQ(*device_->Elapsed(*done_, *done_), Nanos(0));
}

TEST_F(FakeDeviceTest, HoldsStreamsUntilReleased) {
  Start();
  device_->Hold(FakeOp::kLaunch);
  ASSERT_TRUE(Queue().ok());
  device_->AwaitHeld(FakeOp::kLaunch);
  EXPECT_EQ(device_->launches_done(), 0);
  device_->ReleaseOne(FakeOp::kLaunch);
  device_->AwaitLaunchesDone(1);
  ASSERT_TRUE(device_->Wait(*done_, kForever).ok());
  ASSERT_TRUE(Queue().ok());
  device_->AwaitHeld(FakeOp::kLaunch);
  device_->Release(FakeOp::kLaunch);
  EXPECT_TRUE(device_->Wait(*done_, kForever).ok());
  EXPECT_EQ(device_->launches_done(), 2);
}

TEST_F(FakeDeviceTest, AnEventThatHangsIsGivenUp) {
  Start();
  device_->Hold(FakeOp::kLaunch);
  ASSERT_TRUE(Queue().ok());
  for (const Nanos limit : {Nanos(0), Nanos(1'000'000)}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(device_->Wait(*done_, limit)));
  }
  device_->Release(FakeOp::kLaunch);
  EXPECT_TRUE(device_->Wait(*done_, kForever).ok());
}

TEST_F(FakeDeviceTest, OneStreamWaitsForAnother) {
  Start();
  const auto second = *device_->CreateStream();
  const auto behind = *device_->CreateEvent();
  device_->Hold(FakeOp::kLaunch);
  ASSERT_TRUE(Queue().ok());
  ASSERT_TRUE(device_->WaitFor(*second, *done_).ok());
  ASSERT_TRUE(device_->Record(*second, *behind).ok());
  device_->AwaitHeld(FakeOp::kLaunch);
  EXPECT_TRUE(absl::IsDeadlineExceeded(device_->Wait(*behind, Nanos(0))));
  device_->Release(FakeOp::kLaunch);
  EXPECT_TRUE(device_->Wait(*behind, kForever).ok());
}

TEST_F(FakeDeviceTest, ADestroyedStreamIsReleased) {
  Start();
  device_->Hold(FakeOp::kLaunch);
  ASSERT_TRUE(Queue().ok());
  device_->AwaitHeld(FakeOp::kLaunch);
  stream_.reset();
  EXPECT_EQ(device_->launches_done(), 1);
}

TEST_F(FakeDeviceTest, AnEventMayGoBeforeItIsReached) {
  Start();
  device_->Hold(FakeOp::kRecord);
  ASSERT_TRUE(Queue().ok());
  device_->AwaitHeld(FakeOp::kRecord);
  done_.reset();
  device_->Release(FakeOp::kRecord);
  stream_.reset();
  EXPECT_EQ(Result(1), 6.0f);
}

TEST_F(FakeDeviceTest, FailsOnCommand) {
  Start();
  device_->FailNext(FakeOp::kLaunch, absl::InternalError("planned"));
  EXPECT_EQ(Queue(), absl::InternalError("planned"));
  EXPECT_TRUE(device_->healthy());
  EXPECT_TRUE(Queue().ok());
  EXPECT_TRUE(device_->Wait(*done_, kForever).ok());
  device_->FailNext(FakeOp::kAllocatePinned, absl::ResourceExhaustedError("no"), 2);
  EXPECT_FALSE(device_->AllocatePinned(1).ok());
  EXPECT_FALSE(device_->AllocatePinned(1).ok());
  EXPECT_TRUE(device_->AllocatePinned(1).ok());
}

TEST_F(FakeDeviceTest, AsynchronousErrorsAreSticky) {
  Start();
  device_->FailAsync(FakeOp::kLaunch, absl::InternalError("xid 79"));
  EXPECT_EQ(QueueAndWaitForFault(), absl::InternalError("xid 79"));
  EXPECT_FALSE(device_->healthy());
  EXPECT_EQ(Queue(), absl::InternalError("xid 79"));
  EXPECT_EQ(device_->launches_done(), 0);
}

TEST_F(FakeDeviceTest, RandomFailuresFollowTheSeed) {
  std::vector<bool> outcomes[2];
  for (auto& outcome : outcomes) {
    FakeDevice device({.failure_probability = 0.5, .seed = 7});
    for (int i = 0; i < 64; ++i) outcome.push_back(device.CreateEvent().ok());
  }
  EXPECT_EQ(outcomes[0], outcomes[1]);
  EXPECT_NE(std::count(outcomes[0].begin(), outcomes[0].end(), true), 0);
  EXPECT_NE(std::count(outcomes[0].begin(), outcomes[0].end(), false), 0);
}

TEST_F(FakeDeviceTest, DelaysAreTheTests) {
  std::atomic<int> delays = 0;
  Start({.delay = [&](double x) { delays += x >= 0 && x < 1 ? 1 : 100; }});
  ASSERT_TRUE(Queue().ok());
  ASSERT_TRUE(device_->Wait(*done_, kForever).ok());
  EXPECT_EQ(delays, 3);
}

TEST_F(FakeDeviceTest, HostPointersFault) {
  Start();
  problem_.a.data = host_.data();
  EXPECT_TRUE(absl::IsInternal(QueueAndWaitForFault()));
  EXPECT_FALSE(device_->healthy());
}

TEST_F(FakeDeviceTest, KnowsEpilogues) {
  Start();
  reinterpret_cast<float*>(host_.data() + 960)[0] = -7;
  problem_.epilogue.alpha = 2;
  problem_.epilogue.bias = {memory_.data() + 960, 1, 4, 4, DType::kFp32, false};
  ASSERT_TRUE(Queue().ok());
  ASSERT_TRUE(device_->Wait(*done_, kForever).ok());
  EXPECT_EQ(Result(0), -7);
  EXPECT_EQ(Result(1), 12);
}

TEST_F(FakeDeviceTest, AnEpiloguesHostPointersFault) {
  for (const bool bias : {false, true}) {
    Start();
    const MatrixView host = {host_.data(), bias ? 1 : 4, 4, 4, DType::kFp32, false};
    if (bias) {
      problem_.epilogue.bias = host;
    } else {
      problem_.epilogue.beta = 1;
      problem_.epilogue.c = host;
    }
    EXPECT_TRUE(absl::IsInternal(QueueAndWaitForFault()));
    problem_.epilogue = {};
    host_ = {};
    memory_ = {};
    done_.reset();
    stream_.reset();
  }
}

TEST_F(FakeDeviceTest, WrongPitchFaults) {
  Start();
  problem_.b.ld = 32;
  EXPECT_TRUE(absl::IsInternal(QueueAndWaitForFault()));
}

TEST_F(FakeDeviceTest, ReadingPastTheEndFaults) {
  Start();
  problem_.d.data = memory_.data() + 4096 - 60;
  EXPECT_TRUE(absl::IsInternal(QueueAndWaitForFault()));
}

TEST_F(FakeDeviceTest, UnifiedMemoryTakesPinnedPointers) {
  Start({.unified_memory = true});
  problem_.a.data = host_.data();
  ASSERT_TRUE(Queue().ok());
  EXPECT_TRUE(device_->Wait(*done_, kForever).ok());
}

TEST_F(FakeDeviceTest, MemoryHasALimit) {
  Start({.memory_bytes = 10000});
  EXPECT_TRUE(absl::IsResourceExhausted(device_->AllocateDevice(4096).status()));
  memory_ = MemoryBlock();
  EXPECT_TRUE(device_->AllocateDevice(4096).ok());
}

TEST_F(FakeDeviceTest, ManyThreadsAtOnce) {
  Start();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const std::unique_ptr<Stream> stream = *device_->CreateStream();
      const std::unique_ptr<Event> event = *device_->CreateEvent();
      const MemoryBlock block = *device_->AllocateDevice(64);
      std::vector<std::byte> bytes(64);
      for (int i = 0; i < 100; ++i) {
        EXPECT_TRUE(device_->CopyIn(*stream, {block.data(), bytes.data(), 64, 64, 64, 1}).ok());
        EXPECT_TRUE(device_->Record(*stream, *event).ok());
        EXPECT_TRUE(device_->Wait(*event, kForever).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(device_->calls(FakeOp::kCopyIn), 400);
}

}  // namespace
}  // namespace tcgemm
