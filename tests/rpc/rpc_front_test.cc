// The server's front besides the product: sockets, the other methods, health, the end.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/rpc/rpc_fixture.h"

namespace tcgemm {
namespace {

using absl::StatusCode;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// A unary call of bytes, for services whose stubs nobody ships.
grpc::Status CallBytes(RpcFixture& fixture, const char* path, const std::string& request,
                       std::string* response) {
  const auto channel =
      grpc::CreateChannel(fixture.server->addresses()[0], grpc::InsecureChannelCredentials());
  const grpc::internal::RpcMethod method(path, grpc::internal::RpcMethod::NORMAL_RPC);
  const grpc::Slice slice(request);
  const grpc::ByteBuffer sent(&slice, 1);
  grpc::ByteBuffer received;
  grpc::ClientContext context;
  const grpc::Status status =
      grpc::internal::BlockingUnaryCall(channel.get(), method, &context, sent, &received);
  grpc::Slice whole;
  if (status.ok() && received.DumpToSingleSlice(&whole).ok()) {
    response->assign(reinterpret_cast<const char*>(whole.begin()), whole.size());
  }
  return status;
}

TEST(RpcFrontTest, TcpAndUnixGiveTheSameBits) {
  std::string folder = ::testing::TempDir() + "/tcgemm-front-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  {
    RpcOptions options;
    options.listen = {"localhost:0", "unix:" + folder + "/s"};
    RpcFixture fixture(options);
    v1::MatmulRequest request = RpcFixture::Ones(33, 65, 129);
    std::string& bytes = *request.mutable_a()->mutable_inline_();
    for (size_t i = 0; i < bytes.size(); i += 2) bytes[i] = static_cast<char>(i * 37);
    std::vector<v1::MatmulResponse> responses(2);
    for (int address = 0; address < 2; ++address) {
      grpc::ClientContext context;
      const grpc::Status status =
          fixture.Stub(address)->Matmul(&context, request, &responses[address]);
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
    EXPECT_EQ(responses[0].d(), responses[1].d());
    EXPECT_EQ(responses[0].d().size(), 33u * 65 * 4);
  }
  EXPECT_EQ(rmdir(folder.c_str()), 0) << "the socket was not removed";
}

// A connected socket to a server's address.
int ConnectTo(const std::string& address) {
  sockaddr_storage to{};
  socklen_t length = sizeof(sockaddr_in);
  if (address.rfind("unix:", 0) == 0) {
    auto* const path = reinterpret_cast<sockaddr_un*>(&to);
    path->sun_family = AF_UNIX;
    address.copy(path->sun_path, sizeof(path->sun_path) - 1, 5);
    length = sizeof(sockaddr_un);
  } else {
    auto* const v4 = reinterpret_cast<sockaddr_in*>(&to);
    v4->sin_family = AF_INET;
    v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    v4->sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  }
  const int fd = socket(to.ss_family, SOCK_STREAM, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), length), 0);
  return fd;
}

TEST(RpcFrontTest, WhoConnectsAndSaysNothingIsCutOff) {
  std::string folder = ::testing::TempDir() + "/tcgemm-front-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  RpcOptions options;
  options.listen = {"127.0.0.1:0", "unix:" + folder + "/s"};
  options.handshake_timeout = std::chrono::milliseconds(200);
  {
    RpcFixture fixture(options);
    for (const std::string& address : fixture.server->addresses()) {
      for (const std::string said : {"", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}) {
        const int fd = ConnectTo(address);
        EXPECT_EQ(send(fd, said.data(), said.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(said.size()));
        timeval patience = {.tv_sec = 20, .tv_usec = 0};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
        char bytes[256];  // gRPC's greeting
        ssize_t got;
        while ((got = recv(fd, bytes, sizeof(bytes), 0)) > 0) {
        }
        EXPECT_TRUE(got == 0 || errno == ECONNRESET) << address << ": " << strerror(errno);
        close(fd);
      }
    }
    for (int address = 0; address < 2; ++address) {
      grpc::ClientContext context;
      v1::MatmulResponse response;
      EXPECT_TRUE(fixture.Stub(address)->Matmul(&context, RpcFixture::Ones(), &response).ok());
    }
  }
  rmdir(folder.c_str());
}

TEST(RpcFrontTest, WhatIsNotOfferedIsUnimplementedAndCounted) {
  RpcFixture fixture;
  const auto stub = fixture.Stub();
  grpc::ClientContext hold;
  const auto stream = stub->HoldRegion(&hold);
  v1::HoldRegionResponse held;
  EXPECT_FALSE(stream->Read(&held));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_NE(status.error_message().find("--allow-shared-memory"), std::string::npos);
  EXPECT_THAT(fixture.events->AwaitEnded(1),
              UnorderedElementsAre(Pair(StatusCode::kUnimplemented, 1)));
  EXPECT_EQ(fixture.server->totals().started, 0) << "those are no Matmul calls";
}

TEST(RpcFrontTest, InfoTellsTheLimitsAndReadsNothing) {
  RpcOptions options;
  options.version = "1.2.3";
  options.kernels = {"best", "other"};
  RpcFixture fixture(options);
  std::string bytes;
  // A stock request is empty; a large one must not cost memory, nor fail.
  ASSERT_TRUE(CallBytes(fixture, "/tcgemm.v1.MatmulService/GetServerInfo",
                        std::string(8 << 20, 'x'), &bytes)
                  .ok());
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(info.ParseFromString(bytes));
  EXPECT_EQ(info.version(), "1.2.3");
  EXPECT_EQ(info.device(), "fake");
  EXPECT_EQ(info.max_message_bytes(), options.max_message_bytes);
  EXPECT_EQ(info.max_request_memory_bytes(), 16 << 20);
  EXPECT_EQ(info.max_batch(), 1);
  EXPECT_EQ(info.kernels_size(), 2);
  EXPECT_TRUE(info.ready());
  EXPECT_FALSE(info.draining());
  fixture.server->RefuseNewCalls();
  ASSERT_TRUE(CallBytes(fixture, "/tcgemm.v1.MatmulService/GetServerInfo", "", &bytes).ok());
  ASSERT_TRUE(info.ParseFromString(bytes));
  EXPECT_FALSE(info.ready());
  EXPECT_TRUE(info.draining());
  EXPECT_THAT(fixture.events->AwaitEnded(2), UnorderedElementsAre(Pair(StatusCode::kOk, 2)));
}

TEST(RpcFrontTest, HealthFollowsServing) {
  RpcFixture fixture;
  const std::string serving("\x08\x01", 2);
  const std::string not_serving("\x08\x02", 2);
  // HealthCheckRequest{service}: empty means the server.
  const std::string service = "tcgemm.v1.MatmulService";
  const std::string named = std::string("\x0a") + static_cast<char>(service.size()) + service;
  for (const bool on : {true, false, true}) {
    fixture.server->SetServing(on);
    for (const std::string& request : {std::string(), named}) {
      std::string answer;
      ASSERT_TRUE(CallBytes(fixture, "/grpc.health.v1.Health/Check", request, &answer).ok());
      EXPECT_EQ(answer, on ? serving : not_serving);
    }
  }
}

TEST(RpcFrontTest, AJobThatOutlivesItsCallOutlivesNoServer) {
  RpcFixture fixture;
  fixture.device->Hold(FakeOp::kLaunch);
  std::thread client([&] { EXPECT_FALSE(fixture.Call(RpcFixture::Ones()).ok()); });
  fixture.device->AwaitHeld(FakeOp::kLaunch);
  fixture.server->Shutdown();
  client.join();
  EXPECT_EQ(fixture.engine->pending_jobs(), 1);
  std::thread release([&] { fixture.device->Release(FakeOp::kLaunch); });
  fixture.server.reset();
  EXPECT_EQ(fixture.engine->host_pool().used_bytes(), 0u);
  release.join();
  fixture.events->AwaitEnded(1);
}

}  // namespace
}  // namespace tcgemm
