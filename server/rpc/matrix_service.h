// The calls over matrix_call: UploadMatrix, DownloadMatrix, ListMatrices, DeleteMatrix, and
// MatmulStream.
#ifndef TCGEMM_SERVER_RPC_MATRIX_SERVICE_H_
#define TCGEMM_SERVER_RPC_MATRIX_SERVICE_H_

#include <grpcpp/support/server_callback.h>

#include <string>

#include "server/rpc/call_context.h"
#include "server/rpc/matmul_call.h"

namespace tcgemm {

// The reactor of a call of one of these methods whose headers have arrived; null for other methods.
// `context` must outlive every call.
RawReactor* StartMatrixCall(CallContext* context, grpc::CallbackServerContext* grpc_context,
                            const std::string& method);
bool IsMatrixMethod(const std::string& method);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_RPC_MATRIX_SERVICE_H_
