#include "server/main/addresses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tcgemm {
namespace {

using ::testing::HasSubstr;

ServerOptions Listening(const std::string& address) {
  ServerOptions options;
  options.listen = {"127.0.0.1:1", address};
  return options;
}

ServerOptions WithMetricsAt(const std::string& address) {
  ServerOptions options;
  options.metrics_listen = address;
  return options;
}

TEST(AddressesTest, GoodOnes) {
  const std::string longest(107, 'x');
  for (const std::string& address :
       {std::string("127.0.0.1:0"), std::string("[::1]:65535"), std::string("localhost:50051"),
        std::string("no-such-name.invalid:1"), "unix:" + longest}) {
    EXPECT_EQ(CheckAddresses(Listening(address)), "") << address;
  }
  EXPECT_EQ(CheckAddresses(WithMetricsAt("no-such-name.invalid:0")), "");
  EXPECT_TRUE(ResolveAddresses(Listening("localhost:0")).ok());
  EXPECT_TRUE(ResolveAddresses(Listening("unix:/nowhere")).ok());
}

TEST(AddressesTest, BadOnesAreNamedWithTheirFlag) {
  for (const std::string address :
       {"127.0.0.1:70000", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:", "127.0.0.1:x", ":1", "",
        "127.0.0.1", "127.0.0.1:99999999999"}) {
    EXPECT_THAT(CheckAddresses(Listening(address)), HasSubstr("--listen: address '" + address));
    EXPECT_THAT(CheckAddresses(WithMetricsAt(address)),
                HasSubstr("--metrics-listen: metrics address '" + address));
  }
  EXPECT_THAT(CheckAddresses(Listening("unix:")), HasSubstr("--listen: unix socket path ''"));
  EXPECT_THAT(CheckAddresses(Listening("unix:/" + std::string(107, 'x'))), HasSubstr("108 bytes"));
  EXPECT_THAT(CheckAddresses(WithMetricsAt("unix:/x")), HasSubstr("must be HOST:PORT"));
}

TEST(AddressesTest, AHostWithoutAnAddressIsNamedWithItsFlag) {
  const absl::Status grpc = ResolveAddresses(Listening("no-such-name.invalid:1"));
  EXPECT_EQ(grpc.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(grpc.message()), HasSubstr("--listen: address 'no-such-name.invalid:1'"));
  const absl::Status http = ResolveAddresses(WithMetricsAt("[::1]:1"));
  EXPECT_EQ(http.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(http.message()), HasSubstr("no IPv4 address"));
}

}  // namespace
}  // namespace tcgemm
