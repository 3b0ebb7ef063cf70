#include "server/engine/shared_region.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <optional>

#include "tests/engine/test_device.h"

namespace tcgemm {
namespace {

constexpr size_t kPageBytes = 4096;

class SharedRegionTest : public testing::Test {
 protected:
  std::unique_ptr<SharedRegion> Make(size_t bytes) {
    auto region = SharedRegion::Create({.name = "r", .owner = {"uid:7"}}, bytes, device_.get());
    EXPECT_TRUE(region.ok()) << region.status();
    return *std::move(region);
  }
  // What the client does with the fd.
  static std::byte* MapAgain(const SharedRegion& region) {
    void* const data =
        mmap(nullptr, region.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, region.fd(), 0);
    EXPECT_NE(data, MAP_FAILED);
    return static_cast<std::byte*>(data);
  }

  std::shared_ptr<TestDeviceControl> control_ =
      std::make_shared<TestDeviceControl>(TestDeviceOptions{});
  std::unique_ptr<Device> device_ = CreateTestDevice(control_);
};

TEST_F(SharedRegionTest, IsZeroedWholePagesOfItsOwn) {
  const auto region = Make(kPageBytes + 1);
  EXPECT_EQ(region->bytes(), 2 * kPageBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(region->data()) % kPageBytes, 0u);
  for (size_t i = 0; i < region->bytes(); ++i) ASSERT_EQ(region->data()[i], std::byte{0});
  EXPECT_EQ(region->identity().owner.identity, "uid:7");
  std::byte* const there = MapAgain(*region);
  there[kPageBytes] = std::byte{5};
  EXPECT_EQ(region->data()[kPageBytes], std::byte{5});
  munmap(there, region->bytes());
}

TEST_F(SharedRegionTest, NobodyChangesItsSizeOrItsSeals) {
  const auto region = Make(2 * kPageBytes);
  const int seals = fcntl(region->fd(), F_GET_SEALS);
  EXPECT_EQ(seals & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL),
            F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  const int fd = dup(region->fd());
  for (const off_t size : {off_t{0}, off_t{kPageBytes}, off_t{3 * kPageBytes}}) {
    EXPECT_EQ(ftruncate(fd, size), -1);
    EXPECT_EQ(errno, EPERM);
  }
  EXPECT_EQ(fallocate(fd, 0, 2 * kPageBytes, kPageBytes), -1);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
  struct stat status;
  ASSERT_EQ(fstat(fd, &status), 0);
  EXPECT_EQ(status.st_size, static_cast<off_t>(2 * kPageBytes));
  region->data()[2 * kPageBytes - 1] = std::byte{1};  // no SIGBUS
  close(fd);
}

TEST_F(SharedRegionTest, AHoleReadsAsZerosAndCanBeWritten) {
  const auto region = Make(2 * kPageBytes);
  std::memset(region->data(), 0x7f, region->bytes());
  ASSERT_EQ(fallocate(region->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPageBytes), 0);
  EXPECT_EQ(region->data()[5], std::byte{0});
  EXPECT_EQ(region->data()[kPageBytes], std::byte{0x7f});
  region->data()[5] = std::byte{9};
  EXPECT_EQ(region->data()[5], std::byte{9});
}

TEST_F(SharedRegionTest, ItsPagesGoWithItWhateverTheClientKeeps) {
  auto region = Make(16 * kPageBytes);
  const int fd = dup(region->fd());
  std::byte* const there = MapAgain(*region);
  std::memset(there, 0x7f, 16 * kPageBytes);
  struct stat status;
  ASSERT_EQ(fstat(fd, &status), 0);
  EXPECT_GE(status.st_blocks * 512, static_cast<blkcnt_t>(16 * kPageBytes));
  region.reset();
  ASSERT_EQ(fstat(fd, &status), 0);
  EXPECT_EQ(status.st_blocks, 0);
  EXPECT_EQ(there[3], std::byte{0});
  munmap(there, 16 * kPageBytes);
  close(fd);
}

TEST_F(SharedRegionTest, IsRegisteredAsLongAsItLives) {
  auto region = Make(kPageBytes);
  EXPECT_EQ(control_->registered(), (std::map<const void*, size_t>{{region->data(), kPageBytes}}));
  region.reset();
  EXPECT_TRUE(control_->registered().empty());
  EXPECT_EQ(control_->violation(), "");
}

TEST_F(SharedRegionTest, ADeviceThatCannotPinIsAnError) {
  control_->FailNext(TestDeviceControl::Operation::kRegister);
  const auto region = SharedRegion::Create({}, kPageBytes, device_.get());
  EXPECT_TRUE(absl::IsInternal(region.status())) << region.status();
  EXPECT_TRUE(control_->registered().empty());
}

TEST_F(SharedRegionTest, NoSizeThatIsNone) {
  for (const size_t bytes : {size_t{0}, SIZE_MAX, SIZE_MAX - kPageBytes, size_t{1} << 63}) {
    EXPECT_TRUE(absl::IsInvalidArgument(SharedRegion::Create({}, bytes, device_.get()).status()));
  }
  EXPECT_EQ(SharedRegion::RoundUpToPages(SIZE_MAX), 0u);
}

TEST(CheckSharedMemoryAllowedTest, NotUnderStrictOvercommit) {
  const auto with = [](std::optional<std::string> mode) {
    return CheckSharedMemoryAllowed([mode](const std::string&) { return mode; });
  };
  EXPECT_TRUE(with("0\n").ok());
  EXPECT_TRUE(with("1\n").ok());
  EXPECT_TRUE(with(std::nullopt).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(with("2\n")));
}

}  // namespace
}  // namespace tcgemm
