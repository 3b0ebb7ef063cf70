#include "server/rpc/matmul_service.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/call_record.h"
#include "server/rpc/matmul_call.h"
#include "server/rpc/matrix_service.h"
#include "server/rpc/region_call.h"
#include "server/rpc/service_methods.h"
#include "server/rpc/wire_status.h"

namespace tcgemm {
namespace {

using grpc::internal::CallbackBidiHandler;
using grpc::internal::RpcMethod;
using grpc::internal::RpcServiceMethod;

// Counts a call that is answered at once.
class CountedCall : public RawReactor {
 public:
  CountedCall(CallContext* context, grpc::CallbackServerContext* grpc_context, const char* method)
      : record_(context, *grpc_context, method) {}

 protected:
  const absl::Status& credentials() const { return record_.credentials(); }
  void FinishCounted(const absl::Status& status) {
    SetStatus(status);
    Finish(ToGrpcStatus(status));
  }
  void RespondCounted(const grpc::ByteBuffer* response) {
    SetStatus(absl::OkStatus());
    StartWriteAndFinish(response, grpc::WriteOptions(), grpc::Status::OK);
  }

 private:
  // Under a lock because gRPC hands a call from thread to thread in ways that ThreadSanitizer
  // cannot see; this one it can.
  void SetStatus(const absl::Status& status) {
    MutexLock lock(&mutex_);
    status_ = status;
  }
  absl::Status status() {
    MutexLock lock(&mutex_);
    return status_;
  }
  void OnDone() override {
    record_.End(status());
    delete this;
  }

  CallRecord record_;
  Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_) = absl::InternalError("");
};

class UnbuiltCall final : public CountedCall {
 public:
  UnbuiltCall(CallContext* context, grpc::CallbackServerContext* grpc_context, const char* method)
      : CountedCall(context, grpc_context, method) {
    FinishCounted(credentials().ok() ? absl::UnimplementedError(
                                           absl::StrCat(method, " is declared, not built yet"))
                                     : credentials());
  }
};

// Answers without reading the request, which has no fields: one that is large costs nothing.
class InfoCall final : public CountedCall {
 public:
  InfoCall(CallContext* context, grpc::CallbackServerContext* grpc_context)
      : CountedCall(context, grpc_context, "GetServerInfo") {
    if (!credentials().ok()) {
      FinishCounted(credentials());
      return;
    }
    const grpc::Slice slice(DescribeServer(*context).SerializeAsString());
    response_ = grpc::ByteBuffer(&slice, 1);
    RespondCounted(&response_);
  }

 private:
  grpc::ByteBuffer response_;
};

}  // namespace

MatmulService::MatmulService(CallContext* context) : context_(context) {
  for (const std::string& method : ServiceMethods()) {
    if (method == "Matmul") {
      AddMatmul();
    } else if (method == "GetServerInfo") {
      AddGetServerInfo();
    } else if (method == kHoldRegionMethod) {
      AddHoldRegion();
    } else if (IsMatrixMethod(method)) {
      AddMatrixMethod(method);
    } else {
      AddUnbuilt(method);
    }
  }
}

void MatmulService::Register(const std::string& method, RpcMethod::RpcType type,
                             grpc::internal::MethodHandler* handler) {
  // gRPC keeps the pointer to the name; a deque never moves its elements.
  paths_.push_back(absl::StrCat("/", kServiceName, "/", method));
  AddMethod(new RpcServiceMethod(paths_.back().c_str(), type, nullptr));
  MarkMethodCallback(paths_.size() - 1, handler);
}

void MatmulService::AddMatmul() {
  CallContext* const context = context_;
  // Unary in the proto and on the wire; a stream here, so that the reactor is made when the headers
  // arrive and decides itself when to read (docs/adr/0003).
  auto* const handler = new CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
      [context](grpc::CallbackServerContext* grpc_context) {
        return MatmulCall::Start(context, grpc_context);
      });
  Register("Matmul", RpcMethod::BIDI_STREAMING, handler);
}

void MatmulService::AddGetServerInfo() {
  CallContext* const context = context_;
  auto* const handler = new CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
      [context](grpc::CallbackServerContext* grpc_context) -> RawReactor* {
        return new InfoCall(context, grpc_context);
      });
  Register("GetServerInfo", RpcMethod::BIDI_STREAMING, handler);
}

void MatmulService::AddMatrixMethod(const std::string& method) {
  CallContext* const context = context_;
  auto* const handler = new CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
      [context, method](grpc::CallbackServerContext* grpc_context) {
        return StartMatrixCall(context, grpc_context, method);
      });
  Register(method, RpcMethod::BIDI_STREAMING, handler);
}

void MatmulService::AddHoldRegion() {
  CallContext* const context = context_;
  auto* const handler = new CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
      [context](grpc::CallbackServerContext* grpc_context) {
        return RegionCall::Start(context, grpc_context);
      });
  Register(kHoldRegionMethod, RpcMethod::BIDI_STREAMING, handler);
}

void MatmulService::AddUnbuilt(const std::string& method) {
  CallContext* const context = context_;
  names_.push_back(method);
  const char* const name = names_.back().c_str();
  auto* const handler = new CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
      [context, name](grpc::CallbackServerContext* grpc_context) -> RawReactor* {
        return new UnbuiltCall(context, grpc_context, name);
      });
  Register(method, RpcMethod::BIDI_STREAMING, handler);
}

std::vector<std::string> ServiceMethods() {
  const auto* const service =
      v1::MatmulRequest::descriptor()->file()->FindServiceByName("MatmulService");
  std::vector<std::string> methods;
  for (int i = 0; i < service->method_count(); ++i) methods.push_back(service->method(i)->name());
  return methods;
}

v1::GetServerInfoResponse DescribeServer(const CallContext& context) {
  v1::GetServerInfoResponse info;
  Engine& engine = *context.engine;
  const DeviceInfo& device = engine.device_info();
  info.set_version(context.options.version);
  info.set_commit(context.options.commit);
  info.set_cuda(context.options.cuda);
  info.set_device(device.name);
  info.set_device_description(device.description);
  info.set_backend(device.backend);
  const bool draining = context.refusing.load() || context.draining.load();
  info.set_draining(draining);
  info.set_ready(context.ready.load() && !draining && engine.healthy());
  info.set_max_message_bytes(context.options.max_message_bytes);
  info.set_max_request_memory_bytes(
      static_cast<int64_t>(context.engine->host_pool().total_bytes()));
  const EngineBatching batching = engine.batching();
  info.set_max_batch(batching.max_batch);
  info.set_max_queue_delay_us(
      std::chrono::duration_cast<std::chrono::microseconds>(batching.max_queue_delay).count());
  info.set_uptime_seconds(
      std::chrono::duration_cast<std::chrono::seconds>(context.clock->Now() - context.started_at)
          .count());
  info.set_shared_memory_bytes(static_cast<int64_t>(engine.regions().total_bytes()));
  info.set_max_region_bytes(static_cast<int64_t>(engine.regions().largest_bytes()));
  for (const std::string& kernel : context.options.kernels) info.add_kernels(kernel);
  return info;
}

}  // namespace tcgemm
