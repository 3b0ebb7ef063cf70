#include "server/engine/cpu_limit.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>

#include "tests/engine/given_files.h"

namespace tcgemm {
namespace {

TEST(CpuLimitTest, ReadsCpuMax) {
  EXPECT_EQ(ParseCpuMax("200000 100000\n"), 2.0);
  EXPECT_EQ(ParseCpuMax("50000 100000"), 0.5);
  for (const char* none : {"max 100000\n", "", "max", "0 100000", "-1 100000", "5 0", "5", "a b",
                           "nan 100000", "1 2 3"}) {
    EXPECT_EQ(ParseCpuMax(none), std::nullopt) << none;
  }
}

TEST(CpuLimitTest, WithoutACgroupItIsTheAffinity) {
  const int cores = UsableCores(Files({}));
  EXPECT_GE(cores, 1);
  EXPECT_LE(cores, static_cast<int>(std::thread::hardware_concurrency()));
}

TEST(CpuLimitTest, AQuotaAnywhereAboveBinds) {
  const std::string half = "50000 100000\n";
  EXPECT_EQ(UsableCores(
                Files({{"/proc/self/cgroup", "0::/a/b\n"}, {"/sys/fs/cgroup/a/b/cpu.max", half}})),
            1);
  EXPECT_EQ(UsableCores(Files({{"/proc/self/cgroup", "0::/a/b\n"},
                               {"/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"},
                               {"/sys/fs/cgroup/a/cpu.max", half}})),
            1);
  // In a container's own cgroup namespace the path is the root.
  EXPECT_EQ(UsableCores(Files({{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", half}})),
            1);
}

TEST(CpuLimitTest, APartOfACoreCountsAsOneAndAWideQuotaChangesNothing) {
  const int all = UsableCores(Files({}));
  EXPECT_EQ(UsableCores(Files({{"/proc/self/cgroup", "0::/\n"},
                               {"/sys/fs/cgroup/cpu.max", "99900000 100000\n"}})),
            all);
}

TEST(CpuLimitTest, DecodeThreadsAreHalfOfTheCoresWithinBounds) {
  EXPECT_EQ(DefaultDecodeThreads(1), 2);
  EXPECT_EQ(DefaultDecodeThreads(2), 2);
  EXPECT_EQ(DefaultDecodeThreads(10), 5);
  EXPECT_EQ(DefaultDecodeThreads(128), 8);
}

}  // namespace
}  // namespace tcgemm
