// A small gRPC server in the test's process: typed Matmul and MatmulStream that multiply naively,
// and health.
#ifndef TCGEMM_TESTS_CLIENT_NAIVE_SERVER_H_
#define TCGEMM_TESTS_CLIENT_NAIVE_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

namespace tcgemm::client {

// What may be wrong with the answer of a stream.
enum class StreamFault {
  kNone,
  kNoHeader,
  kWrongShape,
  kGap,
  kWrongCrc,
  kTooMuch,
  kTooLittle,
  kNoLastHeader,
  kAfterTheLast,
  kFailsMidway,
};

class NaiveServer {
 public:
  NaiveServer();
  ~NaiveServer();

  // "127.0.0.1:PORT".
  std::string address() const;
  // The next `calls` Matmul calls end in status `code` (grpc::StatusCode), with this pushback
  // trailer unless it is empty.
  void FailNext(int calls, int code, const std::string& pushback_ms);
  // Matmul calls from now on give an element that is off by one.
  void SpoilResults();
  void SpoilStreams(StreamFault fault);
  // Of Matmul; of MatmulStream; messages of streams, headers left out.
  int matmul_calls() const;
  int stream_calls() const;
  int stream_panels() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tcgemm::client

#endif  // TCGEMM_TESTS_CLIENT_NAIVE_SERVER_H_
