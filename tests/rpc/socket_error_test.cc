#include "server/rpc/socket_error.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace tcgemm {
namespace {

TEST(SocketErrorTest, SaysWhatAndWhy) {
  const absl::Status busy = SocketError(EADDRINUSE, "cannot bind 127.0.0.1:80");
  EXPECT_EQ(busy.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(busy.message(), "cannot bind 127.0.0.1:80: Address already in use");
  EXPECT_EQ(SocketError(EACCES, "x").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(SocketError(ENOENT, "x").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SocketError(EADDRNOTAVAIL, "x").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SocketError(EMFILE, "x").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace tcgemm
