// A ResidentStore of a few pages, with a clock that stands still.
#ifndef TCGEMM_TESTS_ENGINE_STORE_FIXTURE_H_
#define TCGEMM_TESTS_ENGINE_STORE_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/engine/resident_store.h"

namespace tcgemm {

inline const Caller kAnn{.identity = "uid:1"};
inline const Caller kBob{.identity = "uid:2"};

inline constexpr size_t kPage = 4096;

// Room for `pages` matrices of 4 KiB.
struct StoreFixture {
  explicit StoreFixture(size_t pages = 4, size_t bytes_per_caller = 0)
      : memory(pages * kPage),
        store(
            MemoryBlock(memory.data(), memory.size(), [](void*) {}), 64, &clock,
            [this](auto& b) {
              std::fill(std::begin(b), std::end(b), ++random);
              return absl::OkStatus();
            },
            bytes_per_caller) {}

  // 32 rows of 64 bf16: 4 KiB.
  absl::StatusOr<ResidentRef> Create(const std::string& name, const Caller& caller = kAnn,
                                     Nanos ttl = Nanos(0), int64_t rows = 32) {
    return store.Create(caller, {.name = name, .rows = rows, .cols = 10, .ttl = ttl});
  }
  // Complete, and let go.
  void Fill(const std::string& name, const Caller& caller = kAnn) {
    const auto matrix = Create(name, caller);
    ASSERT_TRUE(matrix.ok()) << matrix.status();
    const auto missing = (*matrix)->BeginWrite({0, 640});
    (*matrix)->EndWrite(*missing, true);
  }
  bool Has(const std::string& name, const Caller& caller = kAnn) {
    return store.Find(caller, name).ok();
  }

  uint8_t random = 0;
  std::vector<std::byte> memory;
  FakeClock clock;
  ResidentStore store;
};

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_ENGINE_STORE_FIXTURE_H_
