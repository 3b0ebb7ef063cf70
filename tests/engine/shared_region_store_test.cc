#include "server/engine/shared_region_store.h"

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/engine/test_device.h"

namespace tcgemm {
namespace {

constexpr size_t kPage = 4096;
const Caller kAnn = {"uid:1"};
const Caller kBob = {"uid:2"};

using Opened = absl::StatusOr<SharedRegionRef>;

class SharedRegionStoreTest : public testing::Test {
 protected:
  explicit SharedRegionStoreTest(SharedRegionLimits limits = {.total_bytes = 8 * kPage,
                                                              .caller_bytes = 6 * kPage})
      : store_(std::make_unique<SharedRegionStore>(limits, device_.get())) {}
  ~SharedRegionStoreTest() override {
    store_.reset();
    EXPECT_TRUE(control_->registered().empty());
    EXPECT_EQ(control_->violation(), "");
  }

  // Blocks until it is open.
  Opened Open(const Caller& caller, size_t bytes) {
    std::promise<Opened> promise;
    const auto id = store_->Open(
        caller, bytes, [&promise](Opened opened) { promise.set_value(std::move(opened)); });
    if (!id.ok()) return id.status();
    return promise.get_future().get();
  }
  void AwaitUsed(size_t bytes) {
    while (store_->used_bytes() != bytes) std::this_thread::yield();
  }

  std::shared_ptr<TestDeviceControl> control_ =
      std::make_shared<TestDeviceControl>(TestDeviceOptions{});
  std::unique_ptr<Device> device_ = CreateTestDevice(control_);
  std::unique_ptr<SharedRegionStore> store_;
};

TEST_F(SharedRegionStoreTest, ARegionIsItsOwnersAlone) {
  const Opened region = Open(kAnn, 100);
  ASSERT_TRUE(region.ok()) << region.status();
  const std::string name = (*region)->identity().name;
  EXPECT_EQ(name.size(), 32u);
  EXPECT_EQ(*store_->Find(kAnn, name), *region);
  EXPECT_TRUE(absl::IsNotFound(store_->Find(kBob, name).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->Find({}, name).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->Find(kAnn, "").status()));
  store_->Close(*region);
  EXPECT_TRUE(absl::IsNotFound(store_->Find(kAnn, name).status()));
  store_->Close(*region);
}

TEST_F(SharedRegionStoreTest, AReferenceKeepsItMappedAfterClose) {
  Opened region = Open(kAnn, kPage);
  store_->Close(*region);
  EXPECT_EQ(store_->used_bytes(), kPage);
  EXPECT_EQ(control_->registered().size(), 1u);
  (*region)->data()[0] = std::byte{1};
  *region = nullptr;
  AwaitUsed(0);
  EXPECT_EQ(store_->regions(), 0);
  EXPECT_TRUE(control_->registered().empty());
}

TEST_F(SharedRegionStoreTest, EveryBudgetIsALimit) {
  EXPECT_TRUE(absl::IsInvalidArgument(Open(kAnn, 0).status()));
  EXPECT_EQ(store_->largest_bytes(), 6 * kPage);
  for (const size_t bytes : {6 * kPage + 1, SIZE_MAX}) {
    const absl::Status status = Open(kAnn, bytes).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  }
  const Opened first = Open(kAnn, 4 * kPage);
  ASSERT_TRUE(first.ok());
  const absl::Status of_caller = Open(kAnn, 3 * kPage).status();
  EXPECT_TRUE(absl::IsResourceExhausted(of_caller));
  EXPECT_NE(of_caller.message().find("caller"), std::string::npos) << of_caller;
  const Opened second = Open(kBob, 4 * kPage);
  ASSERT_TRUE(second.ok());
  const absl::Status in_all = Open(kAnn, 1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(in_all));
  EXPECT_NE(in_all.message().find("--shared-memory-bytes"), std::string::npos) << in_all;
  EXPECT_EQ(store_->used_bytes(), 8 * kPage);
}

TEST_F(SharedRegionStoreTest, WhatAFailedOpenReservedComesBack) {
  control_->FailNext(TestDeviceControl::Operation::kRegister);
  EXPECT_TRUE(absl::IsInternal(Open(kAnn, 6 * kPage).status()));
  EXPECT_EQ(store_->used_bytes(), 0u);
  EXPECT_TRUE(Open(kAnn, 6 * kPage).ok());
}

TEST_F(SharedRegionStoreTest, AnOpenThatWaitsCanBeCancelled) {
  control_->HoldRegister();
  const auto never = [](Opened) { FAIL() << "a cancelled open was answered"; };
  std::promise<Opened> promise;
  ASSERT_TRUE(store_->Open(kAnn, kPage, [&](Opened o) { promise.set_value(std::move(o)); }).ok());
  control_->AwaitRegister();
  const auto waits = store_->Open(kAnn, 2 * kPage, never);
  ASSERT_TRUE(waits.ok());
  EXPECT_EQ(store_->used_bytes(), 3 * kPage);
  EXPECT_TRUE(store_->CancelOpen(*waits));
  EXPECT_FALSE(store_->CancelOpen(*waits));
  EXPECT_EQ(store_->used_bytes(), kPage);
  control_->ReleaseRegister();
  EXPECT_TRUE(promise.get_future().get().ok());
}

class ManyRegionsTest : public SharedRegionStoreTest {
 protected:
  ManyRegionsTest() : SharedRegionStoreTest({.total_bytes = size_t{1} << 30}) {}
};

TEST_F(ManyRegionsTest, TheQueueIsShortAndSharedOut) {
  control_->HoldRegister();
  std::vector<std::promise<Opened>> promises(SharedRegionStore::kMaxOpening);
  const auto open = [&](int caller, size_t i) {
    return store_
        ->Open({"uid:" + std::to_string(caller)}, 1,
               [&promises, i](Opened opened) { promises[i].set_value(std::move(opened)); })
        .status();
  };
  size_t count = 0;
  int caller = 0;
  for (; count < promises.size(); ++caller) {
    for (int i = 0; i < SharedRegionStore::kMaxOpeningOfCaller; ++i) {
      ASSERT_TRUE(open(caller, count++).ok());
    }
    if (count < promises.size()) {
      const absl::Status status = open(caller, 0);
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    }
  }
  const absl::Status status = open(caller, 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  control_->ReleaseRegister();
  for (auto& promise : promises) EXPECT_TRUE(promise.get_future().get().ok());
}

TEST_F(ManyRegionsTest, ACallerHasSoManyRegionsAndAllHaveSoMany) {
  std::vector<SharedRegionRef> regions;
  for (int caller = 0;
       caller * SharedRegionStore::kMaxRegionsOfCaller < SharedRegionStore::kMaxRegions; ++caller) {
    const Caller who = {"uid:" + std::to_string(caller)};
    for (int i = 0; i < SharedRegionStore::kMaxRegionsOfCaller; ++i) {
      const Opened opened = Open(who, 1);
      ASSERT_TRUE(opened.ok()) << opened.status();
      regions.push_back(*opened);
    }
    EXPECT_TRUE(absl::IsResourceExhausted(Open(who, 1).status()));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(Open({"uid:99"}, 1).status()));
  regions.clear();
}

TEST_F(ManyRegionsTest, WhatWaitsAtTheEndIsTold) {
  control_->HoldRegister();
  // Both are dropped where they arrive: they must be gone before the store.
  std::promise<absl::Status> first;
  std::promise<absl::Status> second;
  ASSERT_TRUE(store_->Open(kAnn, 1, [&](Opened o) { first.set_value(o.status()); }).ok());
  control_->AwaitRegister();
  ASSERT_TRUE(store_->Open(kAnn, 1, [&](Opened o) { second.set_value(o.status()); }).ok());
  std::thread ends([this] { store_.reset(); });
  control_->ReleaseRegister();
  ends.join();
  EXPECT_TRUE(first.get_future().get().ok());
  const absl::Status last = second.get_future().get();  // the end may have come just behind it
  EXPECT_TRUE(last.ok() || absl::IsUnavailable(last)) << last;
}

TEST(NoSharedRegionStoreTest, WithoutABudgetThereIsNothing) {
  const auto control = std::make_shared<TestDeviceControl>(TestDeviceOptions{});
  const auto device = CreateTestDevice(control);
  SharedRegionStore store({}, device.get());
  EXPECT_EQ(store.largest_bytes(), 0u);
  EXPECT_TRUE(absl::IsResourceExhausted(store.Open(kAnn, 1, nullptr).status()));
  EXPECT_TRUE(absl::IsNotFound(store.Find(kAnn, "x").status()));
}

}  // namespace
}  // namespace tcgemm
