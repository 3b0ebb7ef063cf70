#include "server/rpc/wire_status.h"

#include <string>

#include "google/rpc/retry_info.pb.h"

namespace tcgemm {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  // The numbers are the same by design.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

grpc::Status ToGrpcStatusWithRetryInfo(const absl::Status& status) {
  google::rpc::RetryInfo info;
  info.mutable_retry_delay()->set_nanos(kRetryAfterMs * 1'000'000);
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(std::string(status.message()));
  details.add_details()->PackFrom(info);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      details.SerializeAsString());
}

}  // namespace tcgemm
