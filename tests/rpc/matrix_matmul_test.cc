// Matmul with resident operands and results, through a real server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/rpc/request_residents.h"
#include "tests/rpc/matrix_client.h"

namespace tcgemm {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

// A is 4x6 and B 6x5, all ones; B resident as "w".
struct Fixture : RpcFixture {
  Fixture() {
    EXPECT_TRUE(
        Upload(*this, {UploadHeader("w", 6, 5), UploadRange(0, OnesData(6, 5))}).status.ok());
  }
  static v1::MatmulRequest Request() {
    v1::MatmulRequest request = Ones();
    request.mutable_b()->Clear();
    request.mutable_b()->set_handle("w");
    return request;
  }
  StatusCode CodeOf(const v1::MatmulRequest& request, const std::string& words) {
    const grpc::Status status = Call(request);
    EXPECT_THAT(status.error_message(), HasSubstr(words));
    return status.error_code();
  }
};

TEST(MatrixMatmulTest, AHandleDoesWhatItsBytesDo) {
  Fixture fixture;
  v1::MatmulResponse by_bytes;
  v1::MatmulResponse by_handle;
  ASSERT_TRUE(fixture.Call(RpcFixture::Ones(), &by_bytes).ok());
  const grpc::Status status = fixture.Call(Fixture::Request(), &by_handle);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(by_handle.d(), by_bytes.d());
  v1::MatmulRequest told = Fixture::Request();
  told.mutable_b()->set_rows(6);
  told.mutable_b()->set_cols(5);
  told.mutable_b()->set_ld(5);
  told.mutable_b()->set_dtype(v1::BF16);
  EXPECT_TRUE(fixture.Call(told).ok());
}

TEST(MatrixMatmulTest, AChainOfProductsMovesNoBytes) {
  Fixture fixture;
  ASSERT_TRUE(
      Upload(fixture, {UploadHeader("x", 6, 6), UploadRange(0, OnesData(6, 6))}).status.ok());
  std::string last = "x";
  for (int i = 0; i < 3; ++i) {
    v1::MatmulRequest request;
    request.mutable_a()->set_handle(last);
    request.mutable_a()->set_transposed(i == 1);
    request.mutable_b()->set_handle("x");
    request.mutable_output()->set_handle(i == 2 ? "power" : "");
    v1::MatmulResponse response;
    const grpc::Status status = fixture.Call(request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_TRUE(response.d().empty());
    EXPECT_EQ(response.rows(), 6);
    last = response.handle();
  }
  EXPECT_EQ(last, "power");
  const Downloaded power = Download(fixture, "power");
  ASSERT_TRUE(power.status.ok());
  EXPECT_EQ(power.data.substr(0, 2), std::string("\x58\x43", 2)) << "6³ = 216";
  EXPECT_EQ(power.data.size(), 72u);
}

TEST(MatrixMatmulTest, AnFp32ResultStaysButIsNoOperandYet) {
  Fixture fixture;
  v1::MatmulRequest request = Fixture::Request();
  request.mutable_output()->set_handle("d");
  ASSERT_TRUE(fixture.Call(request).ok());
  EXPECT_EQ(Download(fixture, "d").info.dtype(), v1::FP32);
  EXPECT_EQ(Download(fixture, "d").data.size(), 4u * 5 * 4);
  v1::MatmulRequest next = Fixture::Request();
  next.mutable_b()->set_handle("d");
  EXPECT_EQ(fixture.CodeOf(next, "b.dtype FP32"), StatusCode::UNIMPLEMENTED);
}

TEST(MatrixMatmulTest, SaysWhatIsWrong) {
  Fixture fixture;
  ASSERT_TRUE(
      Upload(fixture, {UploadHeader("half", 6, 5), UploadRange(0, OnesData(3, 5))}).status.ok());
  const auto with = [](auto change) {
    v1::MatmulRequest request = Fixture::Request();
    change(request);
    return request;
  };
  EXPECT_EQ(fixture.CodeOf(with([](auto& r) { r.mutable_b()->set_handle("nobody"); }),
                           "b.handle: no matrix 'nobody'"),
            StatusCode::NOT_FOUND);
  EXPECT_EQ(fixture.CodeOf(with([](auto& r) { r.mutable_b()->set_handle(std::string(9999, 'w')); }),
                           "b.handle"),
            StatusCode::NOT_FOUND);
  EXPECT_EQ(fixture.CodeOf(with([](auto& r) { r.mutable_b()->set_handle("half"); }),
                           "only 30 of 60 bytes"),
            StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(fixture.CodeOf(with([](auto& r) { r.mutable_b()->set_rows(5); }), "b.rows is 5"),
            StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(fixture.CodeOf(with([](auto& r) { r.mutable_b()->set_cols(-1); }), "b.cols is -1"),
            StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(fixture.CodeOf(with([](auto& r) { r.mutable_b()->set_ld(64); }), "b.ld is 64"),
            StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(fixture.CodeOf(with([](auto& r) { r.mutable_b()->set_dtype(v1::FP32); }), "b.dtype"),
            StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(fixture.CodeOf(with([](auto& r) { r.mutable_b()->set_transposed(true); }),
                           "inner dimensions differ"),
            StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(fixture.CodeOf(with([](auto& r) { r.mutable_output()->set_handle("w"); }),
                           "output.handle: a matrix 'w' exists"),
            StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(fixture.CodeOf(with([](auto& r) { r.mutable_output()->set_handle("a b"); }),
                           "output.handle: name 'a b'"),
            StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(fixture.CodeOf(with([](auto& r) { r.mutable_output()->mutable_region(); }), "region"),
            StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(List(fixture).size(), 2u) << "a request that fails leaves nothing";
}

TEST(MatrixMatmulTest, AResultThatFailsLeavesNoName) {
  Fixture fixture;
  v1::MatmulRequest request = Fixture::Request();
  request.mutable_output()->set_handle("d");
  fixture.device->FailNext(FakeOp::kLaunch, absl::InternalError("told to fail"));
  EXPECT_EQ(fixture.CodeOf(request, "told to fail"), StatusCode::INTERNAL);
  EXPECT_TRUE(fixture.Call(request).ok()) << "the name is free again";
}

TEST(MatrixMatmulTest, AResultThatIsUnderWayIsNotThereYet) {
  Fixture fixture;
  v1::MatmulRequest request = Fixture::Request();
  request.set_output_dtype(v1::BF16);
  request.mutable_output()->set_handle("d");
  fixture.device->Hold(FakeOp::kLaunch);
  std::thread running([&] { EXPECT_TRUE(fixture.Call(request).ok()); });
  fixture.device->AwaitHeld(FakeOp::kLaunch);
  EXPECT_EQ(Download(fixture, "d").status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Upload(fixture, {JoinHeader("d"), UploadRange(0, "ab")}).status.error_code(),
            StatusCode::FAILED_PRECONDITION);
  // Deleting what the product reads does not disturb it.
  EXPECT_TRUE(Delete(fixture, "w").ok());
  EXPECT_EQ(fixture.CodeOf(Fixture::Request(), "'w'"), StatusCode::NOT_FOUND);
  fixture.device->Release(FakeOp::kLaunch);
  running.join();
  EXPECT_EQ(Download(fixture, "d").data.substr(0, 2), std::string("\xc0\x40", 2)) << "6";
}

TEST(MatrixMatmulTest, RoomComesBackBeforeTheAnswer) {
  Fixture fixture;
  // 512 KiB of the 1 MiB: with "w" there is room for one.
  ASSERT_TRUE(Delete(fixture, "w").ok());
  for (int i = 0; i < 5; ++i) {
    v1::MatmulRequest request = RpcFixture::Ones(512, 512, 8);
    request.mutable_output()->set_handle("d");
    v1::MatmulResponse response;
    const grpc::Status status = fixture.Call(request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.handle(), "d");
    ASSERT_TRUE(Delete(fixture, "d").ok());
    EXPECT_EQ(fixture.engine->residents().pool().used_bytes(), 0u);
  }
}

TEST(MatrixMatmulTest, AFullStoreMayBeTriedAgain) {
  Fixture fixture;
  ASSERT_TRUE(Upload(fixture, {UploadHeader("unfinished", 512, 960)}).status.ok());
  v1::MatmulRequest request = RpcFixture::Ones(512, 512, 8);
  request.mutable_output()->set_handle("d");
  const grpc::Status full = fixture.Call(request);
  EXPECT_EQ(full.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(full.error_message(), HasSubstr("--resident-bytes"));
  EXPECT_FALSE(full.error_details().empty());
  request = RpcFixture::Ones(2048, 512, 8);
  request.mutable_output()->set_handle("d");
  const grpc::Status never = fixture.Call(request);
  EXPECT_EQ(never.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(never.error_details().empty()) << "a retry cannot help";
}

}  // namespace
}  // namespace tcgemm
