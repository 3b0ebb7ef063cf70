#include "client/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tcgemm::client {
namespace {

TEST(AddressTest, TakesNamesAddressesAndSockets) {
  EXPECT_EQ(GrpcTarget("127.0.0.1:50051").value(), "dns:///127.0.0.1:50051");
  EXPECT_EQ(GrpcTarget("localhost:1").value(), "dns:///localhost:1");
  EXPECT_EQ(GrpcTarget("gpu-7.rack_2.example:65535").value(), "dns:///gpu-7.rack_2.example:65535");
  EXPECT_EQ(GrpcTarget("[::1]:50051").value(), "dns:///[::1]:50051");
  EXPECT_EQ(GrpcTarget("unix:/run/tcgemm.sock").value(), "unix:/run/tcgemm.sock");
  EXPECT_TRUE(GrpcTarget("unix:" + std::string(107, 'x')).ok());
}

TEST(AddressTest, RefusesTheRestAndShowsTheForms) {
  for (const std::string& server :
       {std::string(""), std::string("localhost"), std::string(":50051"), std::string("host:"),
        std::string("host:0"), std::string("host:65536"), std::string("host:+1"),
        std::string("host: 1"), std::string("ho st:1"), std::string("http://host:1"),
        std::string("::1:50051"), std::string("[]:1"), std::string("[::g]:1"), std::string("unix:"),
        "unix:" + std::string(108, 'x')}) {
    const absl::StatusOr<std::string> target = GrpcTarget(server);
    ASSERT_EQ(target.status().code(), absl::StatusCode::kInvalidArgument) << server;
    EXPECT_THAT(std::string(target.status().message()), testing::HasSubstr("HOST:PORT"));
    EXPECT_THAT(std::string(target.status().message()), testing::HasSubstr("'" + server + "'"));
  }
}

}  // namespace
}  // namespace tcgemm::client
