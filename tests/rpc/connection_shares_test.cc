#include "server/rpc/connection_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <list>
#include <string>

namespace tcgemm {
namespace {

using ::testing::HasSubstr;

class Socket {
 public:
  Socket() : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) { EXPECT_GE(fd_, 0); }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

class ConnectionSharesTest : public ::testing::Test {
 protected:
  static constexpr size_t kTcp = 0;
  static constexpr size_t kUnix = 1;

  bool Connect(size_t listener) {
    sockets_.emplace_back();
    if (shares_.Admit(listener, sockets_.back().fd())) return true;
    sockets_.pop_back();
    return false;
  }
  int ConnectAll(size_t listener) {
    int admitted = 0;
    while (Connect(listener)) ++admitted;
    return admitted;
  }

  FakeClock clock_;
  std::list<Socket> sockets_;
  ConnectionShares shares_{{"tcp", "unix:s"}, {.connections = 8, .open_files = 99}, &clock_};
};

TEST_F(ConnectionSharesTest, OneListenerCannotPushTheOtherOut) {
  EXPECT_EQ(ConnectAll(kUnix), 6) << "all but the share of the other";
  EXPECT_EQ(ConnectAll(kTcp), 2);
  EXPECT_FALSE(Connect(kUnix));
}

TEST_F(ConnectionSharesTest, WhatIsNobodysGoesToWhoComesFirst) {
  EXPECT_TRUE(Connect(kTcp));
  EXPECT_TRUE(Connect(kTcp));
  EXPECT_TRUE(Connect(kTcp));
  EXPECT_EQ(ConnectAll(kUnix), 5);
  EXPECT_FALSE(Connect(kTcp));
}

TEST_F(ConnectionSharesTest, OneListenerAloneMayHaveAll) {
  ConnectionShares alone({"tcp"}, {.connections = 3, .open_files = 9}, &clock_);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(alone.Admit(0, sockets_.emplace_back().fd()));
  EXPECT_FALSE(alone.Admit(0, sockets_.emplace_back().fd()));
}

TEST_F(ConnectionSharesTest, WhatWasClosedIsFound) {
  EXPECT_EQ(ConnectAll(kUnix), 6);  // and a refusal, which looks at all of them
  sockets_.clear();
  // Something else takes the descriptors, so that no new connection tells.
  std::list<Socket> others;
  for (int i = 0; i < 6; ++i) others.emplace_back();
  EXPECT_FALSE(Connect(kUnix)) << "not looked at again so soon";
  clock_.Advance(ConnectionShares::kSweepInterval);
  EXPECT_EQ(ConnectAll(kUnix), 6);
}

TEST_F(ConnectionSharesTest, ADescriptorGivenOutAgainIsAnotherConnection) {
  EXPECT_EQ(ConnectAll(kUnix), 6);
  for (int i = 0; i < 100; ++i) {
    sockets_.pop_back();
    EXPECT_TRUE(Connect(i % 2 == 0 ? kTcp : kUnix)) << i;
  }
}

TEST_F(ConnectionSharesTest, RefusalsAreToldNowAndThenWithTheLimit) {
  ConnectAll(kUnix);
  EXPECT_THAT(shares_.OnRefused(kUnix).value_or(""),
              HasSubstr("unix:s: 1 connections refused: it has 6 of the 6 that are open, limit 8, "
                        "of which 2 are kept for each listener (the limit of open files is 99)"));
  for (int i = 0; i < 41; ++i) EXPECT_FALSE(shares_.OnRefused(kUnix).has_value());
  EXPECT_TRUE(shares_.OnRefused(kTcp).has_value()) << "each listener speaks for itself";
  clock_.Advance(ConnectionShares::kLogInterval);
  EXPECT_THAT(shares_.OnRefused(kUnix).value_or(""), HasSubstr("42 connections refused"));
}

}  // namespace
}  // namespace tcgemm
