#include "tests/rpc/stream_tester.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "base/crc32c.h"

namespace tcgemm {
namespace {

void FillOperand(int64_t rows, int64_t cols, bool transposed, std::mt19937& random,
                 v1::Operand* operand) {
  if (transposed) std::swap(rows, cols);
  operand->set_rows(rows);
  operand->set_cols(cols);
  operand->set_dtype(v1::BF16);
  operand->set_transposed(transposed);
  std::string* const bytes = operand->mutable_inline_();
  for (int64_t i = 0; i < rows * cols; ++i) {
    // ±[0.5, 2)
    const auto bits = static_cast<uint16_t>(0x3f00 + (random() & 0x80ff));
    bytes->push_back(static_cast<char>(bits & 0xff));
    bytes->push_back(static_cast<char>(bits >> 8));
  }
}

v1::Panel MakePanel(int64_t offset, const std::string& data) {
  v1::Panel panel;
  panel.set_offset(offset);
  panel.set_crc32c(Crc32c(data.data(), data.size()));
  panel.set_data(data);
  return panel;
}

}  // namespace

v1::MatmulRequest RandomRequest(const StreamShape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  v1::MatmulRequest request;
  FillOperand(shape.m, shape.k, shape.transpose_a, random, request.mutable_a());
  FillOperand(shape.k, shape.n, shape.transpose_b, random, request.mutable_b());
  request.set_output_dtype(shape.output);
  return request;
}

v1::MatmulStreamRequest StreamHeader(const v1::MatmulRequest& request) {
  v1::MatmulStreamRequest message;
  *message.mutable_header() = request;
  for (v1::Operand* operand :
       {message.mutable_header()->mutable_a(), message.mutable_header()->mutable_b()}) {
    if (operand->source_case() == v1::Operand::kInline) operand->clear_inline_();
  }
  return message;
}

v1::MatmulStreamRequest PanelA(int64_t offset, const std::string& data) {
  v1::MatmulStreamRequest message;
  *message.mutable_a() = MakePanel(offset, data);
  return message;
}

v1::MatmulStreamRequest PanelB(int64_t offset, const std::string& data) {
  v1::MatmulStreamRequest message;
  *message.mutable_b() = MakePanel(offset, data);
  return message;
}

std::vector<v1::MatmulStreamRequest> StreamOf(const v1::MatmulRequest& request, size_t chunk) {
  std::vector<v1::MatmulStreamRequest> messages = {StreamHeader(request)};
  const auto add = [&](const std::string& bytes, auto make) {
    for (size_t at = 0; at < bytes.size(); at += chunk) {
      messages.push_back(make(static_cast<int64_t>(at), bytes.substr(at, chunk)));
    }
  };
  add(request.b().inline_(), PanelB);
  add(request.a().inline_(), PanelA);
  return messages;
}

Streamed Stream(RpcFixture& fixture, const std::vector<v1::MatmulStreamRequest>& messages,
                const StreamCallOptions& options) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(options.timeout_ms));
  const auto stub = fixture.Stub();
  const auto stream = stub->MatmulStream(&context);
  std::thread sender([&] {
    for (const v1::MatmulStreamRequest& message : messages) {
      if (!stream->Write(message)) return;
    }
    if (options.half_close) stream->WritesDone();
  });
  Streamed streamed;
  bool any = false;
  for (v1::MatmulStreamResponse response; stream->Read(&response);) {
    if (response.has_header()) {
      (any ? streamed.last : streamed.first) = response.header();
      any = true;
      continue;
    }
    const v1::Panel& panel = response.d();
    EXPECT_EQ(panel.offset(), static_cast<int64_t>(streamed.d.size()));
    EXPECT_EQ(panel.crc32c(), Crc32c(panel.data().data(), panel.data().size()));
    streamed.d += panel.data();
    ++streamed.panels;
  }
  sender.join();
  streamed.status = stream->Finish();
  return streamed;
}

void AwaitNothingHeld(RpcFixture& fixture) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  Engine& engine = *fixture.engine;
  while (engine.host_pool().lease_count() > 0 || engine.residents().pool().used_bytes() > 0 ||
         engine.pending_jobs() > 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << "a call still holds memory";
    std::this_thread::yield();
  }
}

}  // namespace tcgemm
