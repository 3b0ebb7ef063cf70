#include "tests/rpc/matrix_client.h"

#include <gtest/gtest.h>

#include "base/crc32c.h"

namespace tcgemm {

v1::UploadMatrixRequest UploadHeader(const std::string& name, int64_t rows, int64_t cols) {
  v1::UploadMatrixRequest request;
  request.mutable_header()->set_name(name);
  request.mutable_header()->set_rows(rows);
  request.mutable_header()->set_cols(cols);
  request.mutable_header()->set_dtype(v1::BF16);
  return request;
}

v1::UploadMatrixRequest JoinHeader(const std::string& handle) {
  v1::UploadMatrixRequest request;
  request.mutable_header()->set_handle(handle);
  return request;
}

v1::UploadMatrixRequest UploadRange(int64_t offset, const std::string& data) {
  v1::UploadMatrixRequest request;
  request.mutable_range()->set_offset(offset);
  request.mutable_range()->set_crc32c(Crc32c(data.data(), data.size()));
  request.mutable_range()->set_data(data);
  return request;
}

Uploaded Upload(RpcFixture& fixture, const std::vector<v1::UploadMatrixRequest>& messages) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  Uploaded uploaded;
  const auto stub = fixture.Stub();
  const auto writer = stub->UploadMatrix(&context, &uploaded.response);
  for (const auto& message : messages) {
    if (!writer->Write(message)) break;
  }
  writer->WritesDone();
  uploaded.status = writer->Finish();
  return uploaded;
}

Downloaded Download(RpcFixture& fixture, const std::string& handle, int64_t offset,
                    int64_t length) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  v1::DownloadMatrixRequest request;
  request.set_handle(handle);
  if (offset != 0 || length != 0) {
    request.mutable_range()->set_offset(offset);
    request.mutable_range()->set_length(length);
  }
  Downloaded downloaded;
  const auto stub = fixture.Stub();
  const auto reader = stub->DownloadMatrix(&context, request);
  for (v1::DownloadMatrixResponse chunk; reader->Read(&chunk);) {
    EXPECT_EQ(chunk.has_info(), downloaded.chunks == 0);
    if (chunk.has_info()) downloaded.info = chunk.info();
    EXPECT_EQ(chunk.offset(), offset + static_cast<int64_t>(downloaded.data.size()));
    EXPECT_EQ(chunk.crc32c(), Crc32c(chunk.data().data(), chunk.data().size()));
    EXPECT_LE(chunk.data().size(), 1u << 20);
    downloaded.data += chunk.data();
    ++downloaded.chunks;
  }
  downloaded.status = reader->Finish();
  return downloaded;
}

std::vector<v1::MatrixInfo> List(RpcFixture& fixture, int address) {
  grpc::ClientContext context;
  v1::ListMatricesResponse response;
  const grpc::Status status = fixture.Stub(address)->ListMatrices(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {response.matrices().begin(), response.matrices().end()};
}

grpc::Status Delete(RpcFixture& fixture, const std::string& handle, int address) {
  grpc::ClientContext context;
  v1::DeleteMatrixRequest request;
  request.set_handle(handle);
  v1::DeleteMatrixResponse response;
  return fixture.Stub(address)->DeleteMatrix(&context, request, &response);
}

std::string OnesData(int64_t rows, int64_t cols) {
  std::string data;
  for (int64_t i = 0; i < rows * cols; ++i) data.append("\x80\x3f", 2);
  return data;
}

}  // namespace tcgemm
