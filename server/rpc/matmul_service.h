// tcgemm.v1.MatmulService with handlers of our own: Matmul sees raw bytes, before its payload.
#ifndef TCGEMM_SERVER_RPC_MATMUL_SERVICE_H_
#define TCGEMM_SERVER_RPC_MATMUL_SERVICE_H_

#include <grpcpp/impl/codegen/service_type.h>

#include <deque>
#include <string>

#include "server/rpc/call_context.h"
#include "tcgemm/v1/matmul.pb.h"

namespace tcgemm {

inline constexpr char kServiceName[] = "tcgemm.v1.MatmulService";

// `context` must outlive the server that the service is registered with.
class MatmulService final : public grpc::Service {
 public:
  explicit MatmulService(CallContext* context);

 private:
  void Register(const std::string& method, grpc::internal::RpcMethod::RpcType type,
                grpc::internal::MethodHandler* handler);
  void AddMatmul();
  void AddGetServerInfo();
  void AddHoldRegion();
  void AddMatrixMethod(const std::string& method);
  // Every method of the proto that is not built yet.
  void AddUnbuilt(const std::string& method);

  CallContext* const context_;
  std::deque<std::string> paths_;
  std::deque<std::string> names_;  // of methods that are not built
};

// What GetServerInfo answers now.
v1::GetServerInfoResponse DescribeServer(const CallContext& context);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_MATMUL_SERVICE_H_
