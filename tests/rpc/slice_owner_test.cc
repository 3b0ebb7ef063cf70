#include "server/rpc/slice_owner.h"

#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

namespace tcgemm {
namespace {

struct Memory {
  Memory(int* count, int bytes) : destroyed(count), data(static_cast<size_t>(bytes)) {}
  Memory(const Memory&) = delete;
  ~Memory() { ++*destroyed; }

  int* const destroyed;
  std::vector<std::byte> data;
};

TEST(SliceOwnerTest, LivesAsLongAsItsSlices) {
  int destroyed = 0;
  auto owner = std::make_unique<SliceOwner<Memory>>(&destroyed, 4096);
  std::byte* const data = (*owner)->data.data();
  std::memset(data, 7, 4096);
  auto first = std::make_unique<grpc::Slice>(owner->MakeSlice(data, 1000));
  EXPECT_EQ(first->begin(), reinterpret_cast<const uint8_t*>(data)) << "a copy";
  auto second = std::make_unique<grpc::Slice>(owner->MakeSlice(data + 1000, 3096));
  auto message = std::make_unique<grpc::ByteBuffer>(second.get(), 1);
  owner.reset();
  first.reset();
  second.reset();
  EXPECT_EQ(destroyed, 0) << "the message has its own";
  EXPECT_EQ(message->Length(), 3096u);
  message.reset();
  EXPECT_EQ(destroyed, 1);
}

TEST(SliceOwnerTest, WithoutASliceItGoesWithItsMaker) {
  int destroyed = 0;
  { const SliceOwner<Memory> owner(&destroyed, 1); }
  EXPECT_EQ(destroyed, 1);
}

// Under ThreadSanitizer: what one thread wrote is destroyed on another.
TEST(SliceOwnerTest, TheLastSliceGoesOnAnotherThread) {
  int destroyed = 0;
  std::vector<std::thread> threads;
  {
    SliceOwner<Memory> owner(&destroyed, 64);
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back(
          [slice = owner.MakeSlice(owner->data.data(), 64)] { EXPECT_EQ(slice.size(), 64u); });
    }
    std::memset(owner->data.data() + 32, 1, 1);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(destroyed, 1);
}

}  // namespace
}  // namespace tcgemm
