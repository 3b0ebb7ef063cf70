#include "bench/rpc_clients.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "bench/stream_request.h"

namespace tcgemm {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr char kPath[] = "/tcgemm.v1.MatmulService/Matmul";

std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

void Note(const grpc::Status& status, double total_ms, double respond_ms, const Answer* answer,
          Loop& loop) {
  if (!status.ok()) {
    ++loop.failures;
    loop.error = status.error_message();
    return;
  }
  loop.latency_ms.push_back(total_ms);
  if (answer == nullptr) return;
  loop.stages.push_back(answer->stages);
  loop.launches += 1.0 / (answer->batched_with + 1);
  loop.respond_ms.push_back(respond_ms);
}

void CallStreamOnce(const std::shared_ptr<grpc::Channel>& channel, const Request& request,
                    Loop& loop) {
  const auto start = SteadyClock::now();
  const StreamAnswer streamed = CallStream(channel, request.stream, request.result_bytes);
  const double total =
      std::chrono::duration<double, std::milli>(SteadyClock::now() - start).count();
  const Answer answer = ReadAnswer(streamed.last, /*is_stream=*/true);
  Note(streamed.status, total, total - streamed.first_byte_seconds * 1e3, &answer, loop);
}

void CallOnce(const std::shared_ptr<grpc::Channel>& channel, const grpc::ByteBuffer& request,
              bool has_stages, Loop& loop) {
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::Status status;
  void* tag;
  bool ok;
  const auto start = SteadyClock::now();
  const auto call = stub.PrepareUnaryCall(&context, kPath, request, &queue);
  call->StartCall();
  // The server's headers come with the first byte of its answer.
  call->ReadInitialMetadata(nullptr);
  queue.Next(&tag, &ok);
  const auto first_byte = SteadyClock::now();
  call->Finish(&response, &status, nullptr);
  queue.Next(&tag, &ok);
  const auto end = SteadyClock::now();
  Answer answer;
  if (has_stages && status.ok()) answer = ReadAnswer(response, /*is_stream=*/false);
  Note(status, std::chrono::duration<double, std::milli>(end - start).count(),
       std::chrono::duration<double, std::milli>(end - first_byte).count(),
       has_stages ? &answer : nullptr, loop);
}

}  // namespace

Loop RunClients(const std::string& address, const Request& request, int clients, double seconds,
                bool is_ours) {
  std::vector<Loop> loops(clients);
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) channels.push_back(Connect(address));
  const auto in_each = [&](const auto& function) {
    for (int i = 0; i < clients; ++i) {
      threads.emplace_back([&function, &loops, &channels, i] { function(channels[i], loops[i]); });
    }
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  };
  const auto call = [&](const std::shared_ptr<grpc::Channel>& channel, Loop& loop) {
    if (is_ours && request.is_stream()) {
      CallStreamOnce(channel, request, loop);
    } else {
      CallOnce(channel, request.message, is_ours, loop);
    }
  };
  in_each([&](const std::shared_ptr<grpc::Channel>& channel, Loop&) {
    Loop warm_up;
    for (int i = 0; i < 2; ++i) call(channel, warm_up);
  });
  const auto start = SteadyClock::now();
  const auto end = start + std::chrono::duration<double>(seconds);
  in_each([&](const std::shared_ptr<grpc::Channel>& channel, Loop& loop) {
    do {
      call(channel, loop);
    } while (SteadyClock::now() < end && loop.failures < 100);
  });
  Loop all;
  for (const Loop& loop : loops) all.Append(loop);
  all.wall_seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
  return all;
}

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(share * values.size()))];
}

}  // namespace tcgemm
