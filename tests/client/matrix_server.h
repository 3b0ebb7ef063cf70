// A gRPC server in the test's process that keeps matrices in its memory, and fails where it is
// told.
#ifndef TCGEMM_TESTS_CLIENT_MATRIX_SERVER_H_
#define TCGEMM_TESTS_CLIENT_MATRIX_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/client/scripted_failures.h"

namespace tcgemm::client {

class MatrixServer {
 public:
  struct Options {
    // Of a release without creation keys, generations and pages.
    bool old = false;
    size_t page_limit = 1000;
    // Of all matrices; more is RESOURCE_EXHAUSTED.
    size_t budget_bytes = SIZE_MAX;
  };
  MatrixServer() : MatrixServer(Options()) {}
  explicit MatrixServer(const Options& options);
  ~MatrixServer();

  // "127.0.0.1:PORT".
  std::string address() const;
  void Fail(const MatrixFailure& failure);
  int calls(MatrixMethod method) const;
  // Connections that calls came over.
  int peers() const;
  // Ranges are not taken before calls came over so many connections.
  void AwaitPeers(int peers);
  // When so many more bytes of ranges have come, the server has no matrices, and the uploads under
  // way fail: as if its process had been started anew.
  void RestartAfter(size_t bytes);
  // Bytes of ranges that came, sent twice or not.
  size_t received_bytes() const;

  std::vector<std::string> handles() const;
  // Seconds, of the matrices that were made, in order; 0: it stays.
  std::vector<int64_t> times_to_live() const;
  // A complete matrix, whatever was there; rows·cols bf16.
  void Put(const std::string& handle, int64_t rows, int64_t cols, const std::string& bytes);
  void Remove(const std::string& handle);
  // Once so many more bytes of downloads have left, the matrix is replaced by one of these bytes.
  void ReplaceDuringDownload(const std::string& handle, const std::string& bytes, size_t after);
  // Empty when it is not there in full.
  std::string BytesOf(const std::string& handle) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tcgemm::client

#endif  // TCGEMM_TESTS_CLIENT_MATRIX_SERVER_H_
