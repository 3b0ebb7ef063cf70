#include "base/strand.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace tcgemm {
namespace {

// Set once, waited for.
class Flag {
 public:
  void Set() {
    MutexLock lock(&mutex_);
    set_ = true;
    cv_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(&mutex_);
    while (!set_) cv_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar cv_;
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
};

TEST(StrandTest, OneAtATimeAndInOrder) {
  ThreadPool pool("strand", 4, 1000);
  Strand strand(&pool);
  std::vector<int> seen;  // no lock: that is the point
  std::atomic<int> at_once{0};
  Flag done;
  for (int i = 0; i < 1000; ++i) {
    strand.Post([&, i] {
      EXPECT_EQ(at_once.fetch_add(1), 0);
      seen.push_back(i);
      at_once.fetch_sub(1);
      if (i == 999) done.Set();
    });
  }
  done.Wait();
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[i], i);
}

TEST(StrandTest, FromManyThreadsNothingIsLost) {
  ThreadPool pool("strand", 3, 1000);
  Strand strand(&pool);
  int sum = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) strand.Post([&sum] { ++sum; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  Flag done;
  strand.Post([&done] { done.Set(); });
  done.Wait();
  EXPECT_EQ(sum, 2000);
}

TEST(StrandTest, AFullPoolRunsTasksInTheCaller) {
  ThreadPool pool("strand", 1, 1);
  Flag go;
  Flag running;
  pool.TrySchedule([&] {
    running.Set();
    go.Wait();
  });
  running.Wait();
  ASSERT_TRUE(pool.TrySchedule([] {}));  // the queue is full now
  Strand strand(&pool);
  std::thread::id ran_in;
  strand.Post([&] { ran_in = std::this_thread::get_id(); });
  EXPECT_EQ(ran_in, std::this_thread::get_id());
  go.Set();
}

TEST(StrandTest, ATaskThatPostsDoesNotRunInsideItself) {
  ThreadPool pool("strand", 1, 10);
  Strand strand(&pool);
  std::vector<int> seen;
  Flag done;
  strand.Post([&] {
    strand.Post([&] {
      seen.push_back(2);
      done.Set();
    });
    seen.push_back(1);
  });
  done.Wait();
  EXPECT_EQ(seen, (std::vector<int>{1, 2}));
}

TEST(StrandTest, TheLastTaskMayOwnTheStrand) {
  ThreadPool pool("strand", 1, 10);
  struct Owner {
    explicit Owner(ThreadPool* pool) : strand(pool) {}
    Strand strand;
  };
  auto owner = std::make_shared<Owner>(&pool);
  std::weak_ptr<Owner> gone = owner;
  Flag done;
  Owner& reference = *owner;
  reference.strand.Post([owner = std::move(owner), &done]() mutable {
    owner.reset();
    done.Set();
  });
  done.Wait();
  EXPECT_TRUE(gone.expired());
}

}  // namespace
}  // namespace tcgemm
