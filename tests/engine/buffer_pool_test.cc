#include "server/engine/buffer_pool.h"

#include <rapidcheck.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tcgemm {
namespace {

constexpr size_t kUnit = BufferPool::kAlignment;

MemoryBlock Block(size_t bytes) {
  return MemoryBlock(std::aligned_alloc(kUnit, (bytes + kUnit - 1) / kUnit * kUnit), bytes,
                     [](void* p) { std::free(p); });
}

TEST(BufferPoolTest, LeasesAreAlignedSizedAndReturned) {
  BufferPool pool("pinned", Block(4 * kUnit));
  absl::StatusOr<Lease> lease = pool.TryLease(kUnit + 1);
  ASSERT_TRUE(lease.ok());
  EXPECT_TRUE(static_cast<bool>(*lease));
  EXPECT_EQ(lease->bytes(), kUnit + 1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(lease->data()) % kUnit, 0u);
  EXPECT_EQ(pool.used_bytes(), 2 * kUnit);
  EXPECT_EQ(pool.lease_count(), 1);
  lease->Reset();
  EXPECT_FALSE(static_cast<bool>(*lease));
  EXPECT_EQ(pool.used_bytes(), 0u);
  EXPECT_EQ(pool.lease_count(), 0);
}

TEST(BufferPoolTest, MovedLeasesReturnOnce) {
  BufferPool pool("pinned", Block(4 * kUnit));
  Lease a = *pool.TryLease(kUnit);
  Lease b = *pool.TryLease(kUnit);
  std::byte* const data = a.data();
  b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): the contract says empty
  EXPECT_EQ(pool.lease_count(), 1);
  Lease c(std::move(b));
  Lease& self = c;
  c = std::move(self);
  EXPECT_EQ(c.data(), data);
}

TEST(BufferPoolTest, SaysWhyNot) {
  BufferPool pool("pinned", Block(2 * kUnit + 100));
  EXPECT_EQ(pool.total_bytes(), 2 * kUnit + 100);
  EXPECT_EQ(pool.TryLease(0).status().code(), absl::StatusCode::kInvalidArgument);
  // The tail below a whole unit cannot be leased, and sizes near SIZE_MAX do not wrap.
  EXPECT_EQ(pool.TryLease(2 * kUnit + 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool.TryLease(SIZE_MAX).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pool.LeaseWhenFree(SIZE_MAX, [](auto) { FAIL(); }).status().code(),
            absl::StatusCode::kInvalidArgument);
  const absl::StatusOr<Lease> all = pool.TryLease(2 * kUnit);
  ASSERT_TRUE(all.ok());
  const absl::Status full = pool.TryLease(1).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), testing::HasSubstr("pinned"));
}

TEST(BufferPoolTest, WaitersAreServedInOrderEvenIfALaterOneWouldFit) {
  BufferPool pool("pinned", Block(4 * kUnit));
  Lease a = *pool.TryLease(2 * kUnit);
  Lease b = *pool.TryLease(kUnit);
  std::vector<int> order;
  std::vector<Lease> got;
  const auto take = [&](int who) {
    return [&, who](absl::StatusOr<Lease> lease) {
      order.push_back(who);
      got.push_back(std::move(*lease));
    };
  };
  EXPECT_NE(*pool.LeaseWhenFree(3 * kUnit, take(1)), 0u);
  EXPECT_NE(*pool.LeaseWhenFree(kUnit, take(2)), 0u);
  // One unit is free, but someone waits: nobody overtakes.
  EXPECT_EQ(pool.TryLease(kUnit).status().code(), absl::StatusCode::kResourceExhausted);
  b.Reset();
  EXPECT_THAT(order, testing::IsEmpty());
  a.Reset();
  EXPECT_THAT(order, testing::ElementsAre(1, 2));
  EXPECT_EQ(pool.used_bytes(), 4 * kUnit);
}

TEST(BufferPoolTest, AFreePieceIsGivenAtOnce) {
  BufferPool pool("pinned", Block(kUnit));
  Lease got;
  const auto id = pool.LeaseWhenFree(1, [&](absl::StatusOr<Lease> l) { got = std::move(*l); });
  EXPECT_EQ(*id, 0u);
  EXPECT_TRUE(static_cast<bool>(got));
}

TEST(BufferPoolTest, CancellingALargeWaiterServesThoseBehindIt) {
  BufferPool pool("pinned", Block(2 * kUnit));
  Lease a = *pool.TryLease(kUnit);
  Lease small;
  const auto large_id = pool.LeaseWhenFree(2 * kUnit, [](auto) { FAIL(); });
  const auto small_id =
      pool.LeaseWhenFree(kUnit, [&](absl::StatusOr<Lease> l) { small = std::move(*l); });
  EXPECT_FALSE(static_cast<bool>(small));
  EXPECT_TRUE(pool.CancelWait(*large_id));
  EXPECT_TRUE(static_cast<bool>(small));
  EXPECT_FALSE(pool.CancelWait(*large_id));
  EXPECT_FALSE(pool.CancelWait(*small_id));
}

// Who does not give back leaves half to the others.
TEST(BufferPoolTest, AnOwnerHasAtMostHalf) {
  BufferPool pool("pinned", Block(4 * kUnit));
  std::vector<Lease> unread;
  unread.push_back(*pool.TryLease(kUnit, "slow"));
  unread.push_back(*pool.TryLease(kUnit, "slow"));
  EXPECT_EQ(pool.TryLease(1, "slow").status().code(), absl::StatusCode::kResourceExhausted);
  std::vector<Lease> waited;
  const auto take = [&](absl::StatusOr<Lease> lease) { waited.push_back(std::move(*lease)); };
  EXPECT_NE(*pool.LeaseWhenFree(2 * kUnit, take, "slow"), 0u);
  EXPECT_NE(*pool.LeaseWhenFree(kUnit, take, "slow"), 0u) << "behind its first";
  EXPECT_FALSE(pool.IsWanted()) << "it waits for itself";
  // Nobody else waits for it.
  Lease other = *pool.TryLease(kUnit, "quick");
  Lease nobodys = *pool.TryLease(kUnit);
  Lease third;
  EXPECT_NE(*pool.LeaseWhenFree(
                kUnit, [&](absl::StatusOr<Lease> lease) { third = std::move(*lease); }, "third"),
            0u);
  EXPECT_TRUE(pool.IsWanted());
  unread.pop_back();
  EXPECT_TRUE(static_cast<bool>(third)) << "not the one that waits for more than its half";
  EXPECT_THAT(waited, testing::IsEmpty());
  third.Reset();
  EXPECT_THAT(waited, testing::IsEmpty()) << "with what it has, two would be three";
  other.Reset();
  unread.clear();
  ASSERT_EQ(waited.size(), 1u);
  EXPECT_EQ(waited[0].bytes(), 2 * kUnit);
  waited.erase(waited.begin());
  ASSERT_EQ(waited.size(), 1u);
  EXPECT_EQ(waited[0].bytes(), kUnit);
}

TEST(BufferPoolTest, AnOwnerWithoutAnyMayHaveALargeOne) {
  BufferPool pool("pinned", Block(4 * kUnit));
  Lease large = *pool.TryLease(4 * kUnit, "a");
  large.Reset();
  large = *pool.TryLease(3 * kUnit, "a");
  EXPECT_FALSE(pool.TryLease(kUnit, "a").ok());
  EXPECT_TRUE(pool.TryLease(kUnit, "b").ok());
  Lease moved = std::move(large);
  moved.Reset();
  EXPECT_TRUE(pool.TryLease(4 * kUnit, "a").ok());
}

TEST(BufferPoolTest, CallbacksMayUseThePool) {
  BufferPool pool("pinned", Block(2 * kUnit));
  Lease a = *pool.TryLease(2 * kUnit);
  int called = 0;
  // Would deadlock if a lock were held; dropping the lease inside serves the next waiter.
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(pool.LeaseWhenFree(2 * kUnit,
                                   [&](absl::StatusOr<Lease> lease) {
                                     ++called;
                                     EXPECT_TRUE(lease.ok());
                                     EXPECT_EQ(pool.lease_count(), 1);
                                     EXPECT_FALSE(pool.CancelWait(12345));
                                   })
                    .ok());
  }
  a.Reset();
  EXPECT_EQ(called, 3);
  EXPECT_EQ(pool.used_bytes(), 0u);
}

// A pool of a few units against a model of who holds which units and who waits.
class PoolModel {
 public:
  explicit PoolModel(size_t units) : units_(units), pool_("model", Block(units * kUnit)) {}

  void Run(const std::vector<uint16_t>& steps) {
    for (const uint16_t step : steps) {
      const size_t argument = step / 4;
      switch (step % 4) {
        case 0:
          TryLease(argument);
          break;
        case 1:
          LeaseWhenFree(argument);
          break;
        case 2:
          Release(argument);
          break;
        case 3:
          Cancel(argument);
          break;
      }
      Check();
    }
    while (!waiting_.empty()) RC_ASSERT(CancelFirst());
    held_.clear();
    RC_ASSERT(pool_.used_bytes() == 0u);
    // All merged back: the whole pool is one piece again.
    RC_ASSERT(pool_.TryLease(units_ * kUnit).ok());
  }

 private:
  size_t Bytes(size_t argument) const { return 1 + argument % (units_ * kUnit); }

  void TryLease(size_t argument) {
    absl::StatusOr<Lease> lease = pool_.TryLease(Bytes(argument));
    if (!lease.ok()) {
      RC_ASSERT(absl::IsResourceExhausted(lease.status()));
      return;
    }
    RC_ASSERT(waiting_.empty());
    held_.push_back(std::move(*lease));
  }

  void LeaseWhenFree(size_t argument) {
    const int ticket = next_ticket_++;
    const size_t bytes = Bytes(argument);
    const auto id = pool_.LeaseWhenFree(bytes, [this, ticket, bytes](absl::StatusOr<Lease> lease) {
      RC_ASSERT(lease.ok());
      RC_ASSERT(lease->bytes() == bytes);
      if (!waiting_.empty()) {
        RC_ASSERT(waiting_.front().first == ticket);  // first come, first served
        waiting_.pop_front();
      }
      held_.push_back(std::move(*lease));
    });
    RC_ASSERT(id.ok());
    if (*id != 0) waiting_.emplace_back(ticket, *id);
  }

  void Release(size_t argument) {
    if (held_.empty()) return;
    const auto it = held_.begin() + static_cast<int64_t>(argument % held_.size());
    Lease lease = std::move(*it);
    held_.erase(it);
    lease.Reset();
  }

  void Cancel(size_t argument) {
    if (waiting_.empty()) return;
    const auto it = waiting_.begin() + static_cast<int64_t>(argument % waiting_.size());
    const BufferPool::WaitId id = it->second;
    waiting_.erase(it);
    RC_ASSERT(pool_.CancelWait(id));
  }

  bool CancelFirst() {
    const BufferPool::WaitId id = waiting_.front().second;
    waiting_.pop_front();
    return pool_.CancelWait(id);
  }

  void Check() {
    std::map<std::byte*, size_t> pieces;
    size_t used = 0;
    for (const Lease& lease : held_) {
      const size_t size = (lease.bytes() + kUnit - 1) / kUnit * kUnit;
      used += size;
      RC_ASSERT(reinterpret_cast<uintptr_t>(lease.data()) % kUnit == 0u);
      RC_ASSERT(pieces.emplace(lease.data(), size).second);
    }
    std::byte* end = nullptr;
    for (const auto& [data, size] : pieces) {
      RC_ASSERT(data >= end);  // no overlap
      end = data + size;
    }
    RC_ASSERT(pool_.used_bytes() == used);
    RC_ASSERT(used <= units_ * kUnit);
    RC_ASSERT(pool_.lease_count() == static_cast<int64_t>(held_.size()));
  }

  const size_t units_;
  BufferPool pool_;
  std::vector<Lease> held_;
  std::deque<std::pair<int, BufferPool::WaitId>> waiting_;
  int next_ticket_ = 0;
};

TEST(BufferPoolTest, AgreesWithTheModel) {
  EXPECT_TRUE(rc::check("pool against model", [](const std::vector<uint16_t>& steps) {
    PoolModel(*rc::gen::inRange<size_t>(1, 9)).Run(steps);
  }));
}

TEST(BufferPoolTest, ThreadsNeverShareAPiece) {
  BufferPool pool("pinned", Block(8 * kUnit));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 500; ++i) {
        absl::StatusOr<Lease> lease = pool.TryLease((1 + (i + t) % 3) * kUnit);
        if (!lease.ok()) continue;
        // A write that TSan or the comparison sees if two hold the piece.
        auto* const word = reinterpret_cast<int*>(lease->data());
        *word = t;
        EXPECT_EQ(*word, t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.used_bytes(), 0u);
  EXPECT_TRUE(pool.TryLease(8 * kUnit).ok());
}

}  // namespace
}  // namespace tcgemm
