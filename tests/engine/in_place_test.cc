#include "server/engine/in_place.h"

#include <gtest/gtest.h>

#include <vector>

namespace tcgemm {
namespace {

alignas(256) std::byte memory[64 << 10];

// 8x8x8 in bf16: 3 KiB of slab, as rows are padded to 64 elements.
StackCandidate Candidate() {
  StackCandidate job;
  job.problem.a = {.data = memory, .rows = 8, .cols = 8, .ld = 64};
  job.problem.b = {.data = memory + 1024, .rows = 8, .cols = 8, .ld = 64};
  job.problem.d = {.data = memory + 2048, .rows = 8, .cols = 8, .ld = 8};
  return job;
}

constexpr InPlaceRule kRule{.reads_pinned = true, .pitch_alignment = 64, .max_bytes = 3 << 10};

TEST(InPlaceTest, ASmallBatchStays) {
  const std::vector<StackCandidate> jobs = {Candidate()};
  EXPECT_TRUE(StaysInPlace(jobs, kRule));
  const BusBytes bytes = InPlaceBytes(jobs);
  EXPECT_EQ(bytes.in, 2u * 8 * 8 * 2);
  EXPECT_EQ(bytes.out, 8u * 8 * 2);
}

TEST(InPlaceTest, OneByteMoreDoesNot) {
  InPlaceRule rule = kRule;
  --rule.max_bytes;
  EXPECT_FALSE(StaysInPlace(std::vector<StackCandidate>{Candidate()}, rule));
  rule.max_bytes = 2 * kRule.max_bytes;
  EXPECT_TRUE(StaysInPlace(std::vector<StackCandidate>(2, Candidate()), rule));
  EXPECT_FALSE(StaysInPlace(std::vector<StackCandidate>(3, Candidate()), rule));
}

TEST(InPlaceTest, ADeviceThatReadsNoHostMemoryGetsCopies) {
  InPlaceRule rule = kRule;
  rule.reads_pinned = false;
  EXPECT_FALSE(StaysInPlace(std::vector<StackCandidate>{Candidate()}, rule));
}

TEST(InPlaceTest, ResultsLieOn16Bytes) {
  std::vector<StackCandidate> jobs = {Candidate()};
  jobs[0].problem.d.ld = jobs[0].problem.d.cols = jobs[0].problem.b.cols = 7;
  EXPECT_FALSE(StaysInPlace(jobs, kRule)) << "rows of 14 bytes";
  jobs[0].problem.d.dtype = DType::kFp32;
  EXPECT_FALSE(StaysInPlace(jobs, kRule)) << "rows of 28 bytes";
  jobs = {Candidate()};
  jobs[0].problem.d.data = memory + 2056;
  EXPECT_FALSE(StaysInPlace(jobs, kRule));
  jobs[0].on_device.d = true;
  EXPECT_TRUE(StaysInPlace(jobs, kRule)) << "a resident result is where it always is";
}

TEST(InPlaceTest, SharedMemoryIsCopied) {
  std::vector<StackCandidate> jobs = {Candidate(), Candidate()};
  jobs[1].in_region = true;
  EXPECT_FALSE(StaysInPlace(
      jobs, {.reads_pinned = true, .pitch_alignment = 64, .max_bytes = size_t{1} << 20}));
}

TEST(InPlaceTest, CAndTheBiasCountAndCLiesOn8Bytes) {
  std::vector<StackCandidate> jobs = {Candidate()};
  Epilogue& epilogue = jobs[0].problem.epilogue;
  epilogue.beta = 1;
  epilogue.c = {.data = memory + 8192, .rows = 8, .cols = 8, .ld = 64, .dtype = DType::kFp32};
  epilogue.bias = {.data = memory + 16384, .rows = 8, .cols = 1, .ld = 1};
  EXPECT_FALSE(StaysInPlace(jobs, kRule)) << "2 KiB and 256 bytes more";
  InPlaceRule rule = kRule;
  rule.max_bytes += (2 << 10) + 256;
  EXPECT_TRUE(StaysInPlace(jobs, rule));
  EXPECT_EQ(InPlaceBytes(jobs).in, 2u * 8 * 8 * 2 + 8 * 8 * 4 + 8 * 2);
  epilogue.c.ld = 9;
  EXPECT_FALSE(StaysInPlace(jobs, rule));
  epilogue.c.ld = 64;
  epilogue.c.data = memory + 8196;
  EXPECT_FALSE(StaysInPlace(jobs, rule));
  epilogue.beta = 0;
  EXPECT_TRUE(StaysInPlace(jobs, rule)) << "nobody reads it";
}

TEST(InPlaceTest, ResidentMatricesTakeNoPartOfTheBus) {
  std::vector<StackCandidate> jobs = {Candidate()};
  jobs[0].on_device = {.a = true, .b = true, .d = true};
  InPlaceRule rule = kRule;
  rule.max_bytes = 0;
  EXPECT_TRUE(StaysInPlace(jobs, rule));
  EXPECT_EQ(InPlaceBytes(jobs).in, 0u);
  EXPECT_EQ(InPlaceBytes(jobs).out, 0u);
}

// 16 rows of A under 4096 columns of B: every tile's column of blocks reads all of A.
TEST(InPlaceTest, WhatTilesReadAgainAndAgainCounts) {
  StackCandidate job = {.on_device = {.b = true}};
  job.problem.a = {.data = memory, .rows = 16, .cols = 4096, .ld = 4096};
  job.problem.b = {.data = memory, .rows = 4096, .cols = 4096, .ld = 4096};
  job.problem.d = {.data = memory, .rows = 16, .cols = 4096, .ld = 4096};
  const InPlaceRule rule = {
      .reads_pinned = true, .pitch_alignment = 64, .max_bytes = kDefaultInPlaceBytes};
  EXPECT_FALSE(StaysInPlace({job}, rule)) << "4 MiB";
  job.problem.b.cols = job.problem.b.ld = job.problem.d.cols = job.problem.d.ld = 1024;
  EXPECT_TRUE(StaysInPlace({job}, rule)) << "1 MiB";
  job.on_device.b = false;
  job.problem.a = {.data = memory, .rows = 256, .cols = 256, .ld = 256};
  job.problem.b = job.problem.a;
  job.problem.d = {.data = memory, .rows = 256, .cols = 256, .ld = 256};
  EXPECT_TRUE(StaysInPlace({job}, rule)) << "256 cubed, which was measured";
}

TEST(InPlaceTest, JobsThatBecomeOneProductAreCopiedTogether) {
  InPlaceRule rule = kRule;
  rule.max_bytes = sizeof(memory);
  std::vector<StackCandidate> jobs(2, Candidate());
  jobs[0].on_device.b = jobs[1].on_device.b = true;
  EXPECT_FALSE(StaysInPlace(jobs, rule));
  jobs[1].problem.b.data = memory + 4096;
  EXPECT_TRUE(StaysInPlace(jobs, rule)) << "two different matrices";
}

}  // namespace
}  // namespace tcgemm
