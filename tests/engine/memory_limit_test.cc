#include "server/engine/memory_limit.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/given_files.h"

namespace tcgemm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kMeminfo[] =
    "MemTotal:        4096 kB\n"
    "MemFree:          512 kB\n"
    "MemAvailable:    2048 kB\n";

TEST(MemoryLimitTest, ParsesV2) {
  EXPECT_EQ(ParseCgroupV2Limit("1073741824\n"), 1073741824u);
  EXPECT_EQ(ParseCgroupV2Limit("0\n"), 0u);
  EXPECT_EQ(ParseCgroupV2Limit("max\n"), std::nullopt);
  EXPECT_EQ(ParseCgroupV2Limit(""), std::nullopt);
  EXPECT_EQ(ParseCgroupV2Limit("-5"), std::nullopt);
}

TEST(MemoryLimitTest, ParsesV1) {
  EXPECT_EQ(ParseCgroupV1Limit("536870912\n"), 536870912u);
  EXPECT_EQ(ParseCgroupV1Limit("9223372036854771712\n"), std::nullopt);  // PAGE_COUNTER_MAX
  EXPECT_EQ(ParseCgroupV1Limit("4611686018427387904\n"), std::nullopt);
  EXPECT_EQ(ParseCgroupV1Limit("4611686018427387903\n"), 4611686018427387903u);
}

TEST(MemoryLimitTest, ParsesProcSelfCgroup) {
  const CgroupPaths v2 = ParseProcSelfCgroup("0::/system.slice/a:b.service\n");
  EXPECT_EQ(v2.v2, "/system.slice/a:b.service");
  EXPECT_EQ(v2.v1_memory, std::nullopt);
  const CgroupPaths v1 = ParseProcSelfCgroup("5:cpu,memory:/docker/1\n4:cpuset:/x\nrubbish\n");
  EXPECT_EQ(v1.v2, std::nullopt);
  EXPECT_EQ(v1.v1_memory, "/docker/1");
}

TEST(MemoryLimitTest, ParsesMeminfo) {
  EXPECT_EQ(ParseMeminfo(kMeminfo, "MemTotal"), 4096u * 1024);
  EXPECT_EQ(ParseMeminfo(kMeminfo, "MemAvailable"), 2048u * 1024);
  EXPECT_EQ(ParseMeminfo(kMeminfo, "Mem"), std::nullopt);
  EXPECT_EQ(ParseMeminfo("MemTotal: 12\n", "MemTotal"), std::nullopt);
  EXPECT_EQ(ParseMeminfo("MemTotal: 18446744073709551615 kB\n", "MemTotal"), std::nullopt);
}

TEST(MemoryLimitTest, WithoutCgroupsItIsTheMachine) {
  const auto limit = DetectMemoryLimit(Files({{"/proc/meminfo", kMeminfo}}));
  ASSERT_TRUE(limit.ok());
  EXPECT_EQ(limit->bytes, 4096u * 1024);
  EXPECT_EQ(limit->available_bytes, 2048u * 1024);
  EXPECT_EQ(limit->source, "MemTotal");
}

TEST(MemoryLimitTest, TheTightestParentBinds) {
  const auto limit = DetectMemoryLimit(Files({{"/proc/meminfo", kMeminfo},
                                              {"/proc/self/cgroup", "0::/pods/pod1/box\n"},
                                              {"/sys/fs/cgroup/pods/pod1/box/memory.max", "max\n"},
                                              {"/sys/fs/cgroup/pods/pod1/memory.max", "1048576\n"},
                                              {"/sys/fs/cgroup/pods/memory.max", "2097152\n"}}));
  ASSERT_TRUE(limit.ok());
  EXPECT_EQ(limit->bytes, 1048576u);
  EXPECT_EQ(limit->available_bytes, 1048576u);
  EXPECT_EQ(limit->source, "cgroup v2 /pods/pod1 memory.max");
}

TEST(MemoryLimitTest, InACgroupNamespaceTheRootHoldsTheLimit) {
  const auto limit = DetectMemoryLimit(Files({{"/proc/meminfo", kMeminfo},
                                              {"/proc/self/cgroup", "0::/\n"},
                                              {"/sys/fs/cgroup/memory.max", "1048576\n"}}));
  ASSERT_TRUE(limit.ok());
  EXPECT_EQ(limit->bytes, 1048576u);
}

TEST(MemoryLimitTest, ReadsV1) {
  // Docker mounts the container's own cgroup at the root while the path names the host's.
  const auto limit =
      DetectMemoryLimit(Files({{"/proc/meminfo", kMeminfo},
                               {"/proc/self/cgroup", "3:memory:/docker/1\n0::/docker/1\n"},
                               {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "2097152\n"}}));
  ASSERT_TRUE(limit.ok());
  EXPECT_EQ(limit->bytes, 2097152u);
  EXPECT_THAT(limit->source, HasSubstr("cgroup v1"));
}

TEST(MemoryLimitTest, ALimitAboveTheMachineDoesNotCount) {
  const auto limit = DetectMemoryLimit(Files({{"/proc/meminfo", kMeminfo},
                                              {"/proc/self/cgroup", "0::/a\n"},
                                              {"/sys/fs/cgroup/a/memory.max", "99999999999\n"}}));
  ASSERT_TRUE(limit.ok());
  EXPECT_EQ(limit->source, "MemTotal");
}

TEST(MemoryLimitTest, NoMeminfoIsAnError) {
  EXPECT_EQ(DetectMemoryLimit(Files({})).status().code(), absl::StatusCode::kInternal);
}

TEST(MemoryLimitTest, ThisMachineHasOne) {
  const auto limit = DetectMemoryLimit(RealFileReader());
  ASSERT_TRUE(limit.ok()) << limit.status();
  EXPECT_GT(limit->available_bytes, 0u);
  EXPECT_LE(limit->available_bytes, limit->bytes);
}

TEST(MemoryLimitTest, BudgetsThatFit) {
  const MemoryLimit limit{.bytes = 100, .source = "test", .available_bytes = 80};
  EXPECT_TRUE(CheckMemoryBudgets({{"--a", 50}, {"--b", 30}}, limit).ok());
  EXPECT_TRUE(CheckMemoryBudgets({}, limit).ok());
  const MemoryLimit idle{.bytes = 100, .source = "test", .available_bytes = 100};
  EXPECT_TRUE(CheckMemoryBudgets({{"--a", 50}, {"--b", 50}}, idle).ok());
}

TEST(MemoryLimitTest, TheErrorNamesEverything) {
  const MemoryLimit limit{.bytes = 100, .source = "cgroup v2 /x memory.max", .available_bytes = 80};
  const absl::Status over = CheckMemoryBudgets({{"--a", 50}, {"--b", 51}}, limit);
  EXPECT_EQ(over.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(over.message()),
              AllOf(HasSubstr("--a 50"), HasSubstr("--b 51"), HasSubstr("101"), HasSubstr("100"),
                    HasSubstr("cgroup v2 /x memory.max")));
  const absl::Status busy = CheckMemoryBudgets({{"--a", 50}, {"--b", 31}}, limit);
  EXPECT_EQ(busy.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(busy.message()), HasSubstr("80 available"));
}

TEST(MemoryLimitTest, ASumThatWrapsDoesNotFit) {
  const MemoryLimit limit{.bytes = 100, .source = "test", .available_bytes = 100};
  EXPECT_FALSE(CheckMemoryBudgets({{"--a", SIZE_MAX}, {"--b", 10}}, limit).ok());
}

TEST(MemoryLimitTest, Defaults) {
  const size_t gib = size_t{1} << 30;
  EXPECT_EQ(ChooseDefaultBudgets(4 * gib).pinned_bytes, gib);
  EXPECT_EQ(ChooseDefaultBudgets(4 * gib).receive_bytes, gib);
  EXPECT_EQ(ChooseDefaultBudgets(1024 * gib).pinned_bytes, gib);
  EXPECT_EQ(ChooseDefaultBudgets(1024 * gib).receive_bytes, 2 * gib);
  EXPECT_EQ(ChooseDefaultBudgets(1000).pinned_bytes, 16u << 20);
}

TEST(MemoryLimitTest, DefaultOfResidentMatrices) {
  const size_t mib = size_t{1} << 20;
  const size_t gib = size_t{1} << 30;
  EXPECT_EQ(ChooseDefaultResidentBytes(4 * gib, {{.name = "a", .bytes = 2 * gib}}), gib / 2);
  EXPECT_EQ(ChooseDefaultResidentBytes(1024 * gib, {{.name = "a", .bytes = 3 * gib}}), gib);
  // Half of what is left, in whole MiB.
  EXPECT_EQ(ChooseDefaultResidentBytes(
                512 * mib, {{.name = "a", .bytes = 256 * mib}, {.name = "b", .bytes = 155 * mib}}),
            50 * mib);
  EXPECT_EQ(ChooseDefaultResidentBytes(512 * mib, {{.name = "a", .bytes = gib}}), 0u);
  EXPECT_EQ(ChooseDefaultResidentBytes(0, {{.name = "a", .bytes = gib}}), 0u);
}

}  // namespace
}  // namespace tcgemm
