#include "server/rpc/region_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/engine/test_device.h"
#include "tests/rpc/region_client.h"

namespace tcgemm {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string TextOf(const RegionToken& token) {
  return std::string(reinterpret_cast<const char*>(token.data()), token.size());
}

class RegionSocketTest : public testing::Test {
 protected:
  void Start(Nanos patience = RegionSocket::kPatience) {
    auto started = RegionSocket::Start({folder_.path("s"), folder_.path("t")}, patience);
    ASSERT_TRUE(started.ok()) << started.status();
    socket_ = *std::move(started);
    auto region = SharedRegion::Create({.name = "r"}, 4096, device_.get());
    ASSERT_TRUE(region.ok());
    region_ = *std::move(region);
  }
  std::string Offer(uid_t user = getuid()) { return TextOf(*socket_->Offer(region_, user)); }
  FetchedFd FetchWith(const std::string& token, const char* name = "s") {
    return Fetch(ConnectTo(folder_.path(name)), token);
  }

  SocketFolder folder_;
  std::shared_ptr<TestDeviceControl> control_ =
      std::make_shared<TestDeviceControl>(TestDeviceOptions{});
  std::unique_ptr<Device> device_ = CreateTestDevice(control_);
  SharedRegionRef region_;
  std::unique_ptr<RegionSocket> socket_;
};

TEST_F(RegionSocketTest, ATokenGetsTheDescriptorOnEverySocket) {
  Start();
  for (const char* name : {"s", "t"}) {
    const FetchedFd fetched = FetchWith(Offer(), name);
    ASSERT_GE(fetched.fd, 0) << fetched.text;
    EXPECT_EQ(fetched.text, "OK");
    void* const there = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fetched.fd, 0);
    ASSERT_NE(there, MAP_FAILED);
    static_cast<char*>(there)[7] = name[0];
    EXPECT_EQ(static_cast<char>(region_->data()[7]), name[0]);
    munmap(there, 4096);
    close(fetched.fd);
  }
}

TEST_F(RegionSocketTest, ATokenIsGoodOnce) {
  Start();
  const std::string token = Offer();
  close(FetchWith(token).fd);
  const FetchedFd again = FetchWith(token);
  EXPECT_EQ(again.fd, -1);
  EXPECT_THAT(again.text, StartsWith("refused: "));
}

TEST_F(RegionSocketTest, OfTenAtOnceOneGetsIt) {
  Start();
  const std::string token = Offer();
  std::vector<FetchedFd> fetched(10);
  std::vector<std::thread> threads;
  for (FetchedFd& one : fetched) {
    threads.emplace_back([&] { one = FetchWith(token); });
  }
  for (std::thread& thread : threads) thread.join();
  int got = 0;
  for (const FetchedFd& one : fetched) {
    if (one.fd < 0) continue;
    ++got;
    close(one.fd);
  }
  EXPECT_EQ(got, 1);
}

TEST_F(RegionSocketTest, AnotherUsersTokenIsRefusedAndStaysGood) {
  Start();
  const std::string token = Offer(getuid() + 1);
  for (int i = 0; i < 2; ++i) {
    const FetchedFd fetched = FetchWith(token);
    EXPECT_EQ(fetched.fd, -1);
    EXPECT_THAT(fetched.text, HasSubstr("no such token for this user"));
  }
}

TEST_F(RegionSocketTest, GuessesAndWithdrawnTokensAreRefused) {
  Start();
  std::string token = Offer();
  std::string guess = token;
  guess[15] = static_cast<char>(guess[15] ^ 1);
  EXPECT_EQ(FetchWith(guess).fd, -1);
  EXPECT_EQ(FetchWith(std::string(16, '\0')).fd, -1);
  const RegionToken withdrawn = *socket_->Offer(region_, getuid());
  socket_->Withdraw(withdrawn);
  socket_->Withdraw(withdrawn);
  EXPECT_EQ(FetchWith(TextOf(withdrawn)).fd, -1);
  EXPECT_EQ(region_.use_count(), 2) << "this test's and the offer that is left";
  close(FetchWith(token).fd);
  while (region_.use_count() != 1) std::this_thread::yield();
}

TEST_F(RegionSocketTest, WhoSaysNothingIsClosedAndOthersAreServed) {
  Start(std::chrono::milliseconds(50));
  std::vector<int> silent;
  for (int i = 0; i < RegionSocket::kMaxOfUser - 1; ++i) {
    silent.push_back(ConnectTo(folder_.path("s")));
    EXPECT_EQ(send(silent.back(), "half", i % 5, MSG_NOSIGNAL), i % 5);
  }
  const FetchedFd fetched = FetchWith(Offer());
  EXPECT_GE(fetched.fd, 0);
  close(fetched.fd);
  for (const int fd : silent) {
    char byte;
    EXPECT_LE(recv(fd, &byte, 1, 0), 0) << "it must be closed, without a word";
    close(fd);
  }
  while (socket_->connections() != 0) std::this_thread::yield();
}

TEST_F(RegionSocketTest, AUserHasSoManyConnections) {
  Start();
  std::vector<int> silent;
  for (int i = 0; i < RegionSocket::kMaxOfUser; ++i) silent.push_back(ConnectTo(folder_.path("s")));
  while (socket_->connections() < RegionSocket::kMaxOfUser) std::this_thread::yield();
  EXPECT_THAT(FetchWith(Offer()).text, HasSubstr("too many connections"));
  for (const int fd : silent) close(fd);
  while (socket_->connections() != 0) std::this_thread::yield();
  const FetchedFd fetched = FetchWith(Offer());
  EXPECT_GE(fetched.fd, 0);
  close(fetched.fd);
}

TEST_F(RegionSocketTest, StopClosesEverything) {
  Start();
  const int silent = ConnectTo(folder_.path("s"));
  while (socket_->connections() < 1) std::this_thread::yield();
  socket_->Stop();
  char byte;
  EXPECT_LE(recv(silent, &byte, 1, 0), 0);
  close(silent);
  EXPECT_EQ(access(folder_.path("s").c_str(), F_OK), -1);
  EXPECT_TRUE(socket_->Offer(region_, 1).ok()) << "calls that are ending may still come";
}

TEST_F(RegionSocketTest, APathThatIsTakenIsAnError) {
  Start();
  EXPECT_TRUE(absl::IsAlreadyExists(RegionSocket::Start({folder_.path("s")}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(RegionSocket::Start({std::string(200, 'x')}).status()));
}

}  // namespace
}  // namespace tcgemm
