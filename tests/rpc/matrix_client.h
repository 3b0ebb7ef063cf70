// Calls on resident matrices, for the tests: a stock stub with the typing done.
#ifndef TCGEMM_TESTS_RPC_MATRIX_CLIENT_H_
#define TCGEMM_TESTS_RPC_MATRIX_CLIENT_H_

#include <string>
#include <vector>

#include "tests/rpc/rpc_fixture.h"

namespace tcgemm {

v1::UploadMatrixRequest UploadHeader(const std::string& name, int64_t rows, int64_t cols);
v1::UploadMatrixRequest JoinHeader(const std::string& handle);
v1::UploadMatrixRequest UploadRange(int64_t offset, const std::string& data);

struct Uploaded {
  grpc::Status status;
  v1::UploadMatrixResponse response;
};
Uploaded Upload(RpcFixture& fixture, const std::vector<v1::UploadMatrixRequest>& messages);

struct Downloaded {
  grpc::Status status;
  v1::MatrixInfo info;
  std::string data;  // every chunk's CRC was right
  int chunks = 0;
};
Downloaded Download(RpcFixture& fixture, const std::string& handle, int64_t offset = 0,
                    int64_t length = 0);

std::vector<v1::MatrixInfo> List(RpcFixture& fixture, int address = 0);
grpc::Status Delete(RpcFixture& fixture, const std::string& handle, int address = 0);

// rows·cols ones in bf16.
std::string OnesData(int64_t rows, int64_t cols);

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_RPC_MATRIX_CLIENT_H_
