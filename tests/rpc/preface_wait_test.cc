#include "server/rpc/preface_wait.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <string>

namespace tcgemm {
namespace {

constexpr Nanos kLong = std::chrono::hours(1);

std::string Preface() { return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"; }
// A SETTINGS frame with one of them.
std::string Settings() { return std::string("\0\0\6\4\0\0\0\0\0\0\3\0\0\0\x64", 15); }

// Both ends of a connection.
class Pair {
 public:
  Pair() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds_), 0); }
  ~Pair() { close(client()); }
  int client() const { return fds_[0]; }
  int server() const { return fds_[1]; }
  void Say(const std::string& bytes) const {
    EXPECT_EQ(send(client(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Waits for the other end to be closed.
  bool IsClosed() const {
    pollfd wait = {.fd = client(), .events = POLLIN, .revents = 0};
    poll(&wait, 1, -1);
    char byte;
    return recv(client(), &byte, 1, 0) <= 0;
  }

 private:
  int fds_[2];
};

// A connection handed on, as a value to wait for.
class HandedOn {
 public:
  PrefaceWait::OnPreface Callback() {
    return [this](int fd) { fd_.set_value(fd); };
  }
  int Wait() { return fd_.get_future().get(); }

 private:
  std::promise<int> fd_;
};

void Fail(int fd) {
  ADD_FAILURE() << "handed on";
  close(fd);
}

TEST(PrefaceWaitTest, HandsOnWhatHasSaidItAllWithEveryByte) {
  const auto wait = PrefaceWait::Start(kLong).value();
  const Pair early;
  early.Say(Preface() + Settings() + "more");
  HandedOn handed;
  wait->Add(early.server(), handed.Callback());
  const int fd = handed.Wait();
  EXPECT_EQ(fd, early.server());
  char bytes[100];
  EXPECT_EQ(recv(fd, bytes, sizeof(bytes), 0), 24 + 15 + 4);
  close(fd);
}

TEST(PrefaceWaitTest, BytesMayComeOneByOne) {
  const auto wait = PrefaceWait::Start(kLong).value();
  const Pair slow;
  std::atomic<bool> complete = false;
  std::promise<int> handed;
  wait->Add(slow.server(), [&](int fd) {
    EXPECT_TRUE(complete.load());
    handed.set_value(fd);
  });
  const std::string all = Preface() + Settings();
  for (size_t i = 0; i < all.size(); ++i) {
    complete = i + 1 == all.size();
    slow.Say(all.substr(i, 1));
  }
  close(handed.get_future().get());
}

TEST(PrefaceWaitTest, EmptySettingsAreEnough) {
  const auto wait = PrefaceWait::Start(kLong).value();
  const Pair pair;
  HandedOn handed;
  wait->Add(pair.server(), handed.Callback());
  pair.Say(Preface() + std::string("\0\0\0\4\0\0\0\0\0", 9));
  close(handed.Wait());
}

TEST(PrefaceWaitTest, SilenceIsClosed) {
  const auto wait = PrefaceWait::Start(std::chrono::milliseconds(50)).value();
  const Pair silent, half, no_settings;
  for (const Pair* pair : {&silent, &half, &no_settings}) wait->Add(pair->server(), Fail);
  half.Say("PRI * HT");
  no_settings.Say(Preface() + Settings().substr(0, 14));
  for (const Pair* pair : {&silent, &half, &no_settings}) EXPECT_TRUE(pair->IsClosed());
}

TEST(PrefaceWaitTest, AnotherProtocolIsClosedAtOnce) {
  const auto wait = PrefaceWait::Start(kLong).value();
  const Pair pair;
  wait->Add(pair.server(), Fail);
  pair.Say("GET / HTTP/1.1\r\n");
  EXPECT_TRUE(pair.IsClosed());
}

TEST(PrefaceWaitTest, WhoLeavesIsForgotten) {
  const auto wait = PrefaceWait::Start(kLong).value();
  const Pair pair;
  wait->Add(pair.server(), Fail);
  pair.Say("PRI");
  shutdown(pair.client(), SHUT_WR);
  EXPECT_TRUE(pair.IsClosed());
}

TEST(PrefaceWaitTest, StopClosesAll) {
  const auto wait = PrefaceWait::Start(kLong).value();
  const Pair before, after;
  wait->Add(before.server(), Fail);
  wait->Stop();
  wait->Add(after.server(), Fail);
  EXPECT_TRUE(before.IsClosed());
  EXPECT_TRUE(after.IsClosed());
  wait->Stop();
}

}  // namespace
}  // namespace tcgemm
