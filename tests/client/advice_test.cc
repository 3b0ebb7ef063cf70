#include "client/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tcgemm::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string Explained(const absl::Status& status, int64_t limit = 0) {
  const std::string line = Explain(status, {.server = "gpu7:50051",
                                            .timeout = std::chrono::milliseconds(1500),
                                            .max_message_bytes = limit});
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  EXPECT_THAT(line, HasSubstr(std::string(status.message()).substr(0, 10)));
  return line;
}

TEST(AdviceTest, UnreachableServer) {
  EXPECT_THAT(Explained(absl::UnavailableError("failed to connect to all addresses; …")),
              AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("gpu7:50051"), HasSubstr("running there"),
                    HasSubstr("--server"), HasSubstr("TCGEMM_SERVER")));
  EXPECT_THAT(Explained(absl::UnavailableError("DNS resolution failed for gpu7")),
              HasSubstr("cannot reach gpu7:50051"));
  // A server that answers so is reachable.
  EXPECT_THAT(Explained(absl::UnavailableError("draining")),
              AllOf(Not(HasSubstr("cannot reach")), HasSubstr("try again")));
}

TEST(AdviceTest, WhoIsNotKnownOrHasTooMuch) {
  EXPECT_THAT(Explained(absl::UnauthenticatedError("no valid credentials")),
              AllOf(HasSubstr("--token-file"), HasSubstr("TCGEMM_TOKEN")));
  EXPECT_THAT(Explained(absl::ResourceExhaustedError("limit 2 (--max-inflight-per-caller)")),
              HasSubstr("keeps this caller to a limit"));
}

TEST(AdviceTest, AFailedHandshakeNamesTheFlag) {
  const std::string failed = "failed to connect to all addresses; last error: ";
  const auto explained = [&](const std::string& what) {
    return Explained(absl::UnavailableError(failed + what));
  };
  EXPECT_THAT(explained("SSL_ERROR_SSL: error:0A000086:SSL routines::certificate verify failed"),
              HasSubstr("not of an authority in --tls-ca"));
  EXPECT_THAT(explained("CERTIFICATE_VERIFY_FAILED"), HasSubstr("not of an authority"));
  EXPECT_THAT(explained("Peer name gpu7 is not in peer certificate"),
              HasSubstr("--tls-server-name"));
  EXPECT_THAT(explained("SSL routines::wrong version number"), HasSubstr("leave --tls-ca out"));
  EXPECT_THAT(explained("Socket closed"),
              AllOf(HasSubstr("--tls-ca"), HasSubstr("--tls-cert and --tls-key")));
  EXPECT_THAT(explained("Connection reset by peer"), HasSubstr("give --tls-ca"));
  // A connection that broke in a call is no handshake.
  EXPECT_THAT(Explained(absl::UnavailableError("Socket closed")), Not(HasSubstr("--tls-ca")));
}

TEST(AdviceTest, RefusedSizeNamesLimitAndFlag) {
  const absl::Status grpc =
      absl::ResourceExhaustedError("Received message larger than max (9 vs. 8)");
  const absl::Status ours =
      absl::ResourceExhaustedError("the request has 9 bytes, limit 8 (--max-message-bytes)");
  for (const absl::Status& status : {grpc, ours}) {
    EXPECT_TRUE(IsRefusedSize(status));
    EXPECT_THAT(Explained(status, 1048576),
                AllOf(HasSubstr("--max-message-bytes"), HasSubstr("1048576")));
    EXPECT_THAT(Explained(status), Not(HasSubstr("its limit")));
  }
}

TEST(AdviceTest, AFullServerIsNoRefusedSize) {
  for (const char* message :
       {"the queue is full",
        "too many payloads are being received (--queue-bytes / --max-message-bytes)"}) {
    const absl::Status status = absl::ResourceExhaustedError(message);
    EXPECT_FALSE(IsRefusedSize(status)) << message;
    EXPECT_THAT(Explained(status), HasSubstr("later"));
  }
  EXPECT_FALSE(IsRefusedSize(absl::InternalError("larger than max")));
}

TEST(AdviceTest, SharedMemory) {
  EXPECT_THAT(Explained(absl::ResourceExhaustedError("limit 9 (--shared-memory-bytes)")),
              AllOf(HasSubstr("close other regions"), HasSubstr("--shared-memory-bytes")));
  EXPECT_THAT(Explained(absl::UnimplementedError("it runs without --allow-shared-memory")),
              HasSubstr("restart it with --allow-shared-memory"));
}

TEST(AdviceTest, OtherCodes) {
  EXPECT_THAT(Explained(absl::DeadlineExceededError("Deadline Exceeded")),
              AllOf(HasSubstr("1.5s"), HasSubstr("--timeout"), HasSubstr("gpu7:50051")));
  EXPECT_THAT(Explained(absl::UnimplementedError("no such method")), HasSubstr("tcgemm-server"));
  EXPECT_THAT(Explained(absl::DataLossError("not a MatmulResponse")), HasSubstr("do not use"));
  EXPECT_THAT(Explained(absl::InternalError("a bug in line 1")), HasSubstr("log"));
  // The server's message already names field, value and limit.
  EXPECT_EQ(Explained(absl::InvalidArgumentError("a.rows is 0; it must be 1 or more")),
            "INVALID_ARGUMENT: a.rows is 0; it must be 1 or more");
}

TEST(AdviceTest, EveryCodeMakesOneLine) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "first line\nsecond\r\nthird");
    const std::string line = Explain(status, {.server = "gpu7:50051"});
    EXPECT_THAT(line, HasSubstr(CodeName(status)));
    EXPECT_THAT(line, HasSubstr("first line second"));
    EXPECT_EQ(line.find_first_of("\r\n"), std::string::npos);
  }
}

}  // namespace
}  // namespace tcgemm::client
