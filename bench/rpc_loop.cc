#include "bench/rpc_loop.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/status_macros.h"
#include "client/cli/bench_region.h"
#include "client/matrix_client.h"
#include "client/wire_reader.h"
#include "matrix/matrix.h"

namespace tcgemm {
namespace {

using SteadyClock = std::chrono::steady_clock;

using client::WireReader;
using client::WireTag;
using client::WireType;

Stages ReadStages(WireReader timings) {
  Stages stages{};
  while (const uint32_t stage = timings.ReadTag()) {
    if (stage % 8 != 0 || stage / 8 < 1 || stage / 8 > stages.size()) {
      timings.Skip(stage);
    } else {
      stages[stage / 8 - 1] = static_cast<double>(timings.ReadVarint()) / 1e6;
    }
  }
  return stages;
}

// Of a MatmulResponse, whose D comes last.
Answer ReadAnswer(WireReader reader) {
  Answer answer;
  while (const uint32_t tag = reader.ReadTag()) {
    if (tag == WireTag(15, WireType::kBytes)) break;
    if (tag == WireTag(4, WireType::kBytes)) {
      answer.stages = ReadStages(reader.ReadMessage());
    } else if (tag == WireTag(7, WireType::kVarint)) {
      answer.batched_with = static_cast<int>(reader.ReadVarint());
    } else {
      reader.Skip(tag);
    }
  }
  return answer;
}

double Ms(Nanos time) { return std::chrono::duration<double, std::milli>(time).count(); }

constexpr client::CallOptions kCall = {.timeout = std::chrono::seconds(60), .retry = false};

// No byte of a matrix travels.
class ResidentProduct final : public client::BenchProduct {
 public:
  static absl::StatusOr<std::unique_ptr<client::BenchProduct>> Create(const Cell& cell) {
    auto product = std::make_unique<ResidentProduct>();
    for (int i = 0; i < cell.clients; ++i) {
      TCGEMM_ASSIGN_OR_RETURN(auto client, client::MatrixClient::Create({.server = cell.server}));
      product->clients_.push_back(std::move(client));
    }
    for (const bool is_b : {false, true}) {
      Matrix matrix(is_b ? cell.shape.k : cell.shape.m, is_b ? cell.shape.n : cell.shape.k,
                    DType::kBf16);
      FillNormal(matrix, is_b ? 2 : 1);
      TCGEMM_ASSIGN_OR_RETURN((is_b ? product->b_ : product->a_).handle,
                              product->clients_[0]->Upload(matrix.view(), {}, kCall));
    }
    return product;
  }
  ~ResidentProduct() override {
    for (const client::Factor& factor : {a_, b_}) {
      if (!factor.handle.empty()) (void)clients_[0]->Delete(factor.handle, kCall);
    }
  }

  client::CallOutcome Call(int client) override {
    Matrix none;
    const absl::StatusOr<client::Product> product = clients_[static_cast<size_t>(client)]->Multiply(
        a_, b_, DType::kBf16, /*keep=*/true, "", none, kCall);
    if (!product.ok()) return {.status = product.status()};
    return {.info = product->info};
  }
  absl::StatusOr<std::optional<client::Proof>> ProveOne() const override { return std::nullopt; }

 private:
  std::vector<std::unique_ptr<client::MatrixClient>> clients_;
  client::Factor a_;
  client::Factor b_;
};

}  // namespace

Answer ReadAnswer(const grpc::ByteBuffer& response, bool is_stream) {
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) return {};
  std::vector<absl::string_view> pieces;
  for (const grpc::Slice& slice : slices) {
    pieces.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  WireReader reader(pieces);
  if (!is_stream) return ReadAnswer(reader);
  return reader.ReadTag() == WireTag(1, WireType::kBytes) ? ReadAnswer(reader.ReadMessage())
                                                          : Answer{};
}

absl::StatusOr<std::unique_ptr<client::BenchProduct>> OpenProduct(const Cell& cell) {
  const auto& [m, n, k] = cell.shape;
  if (cell.is_resident()) return ResidentProduct::Create(cell);
  return client::CreateRegionProduct({.server = {.server = cell.server},
                                      .shape = {.m = m, .n = n, .k = k},
                                      .resident = cell.path == "shared_memory_resident",
                                      .clients = cell.clients,
                                      .connections = cell.clients,
                                      .timeout = std::chrono::seconds(60)});
}

Loop RunProduct(client::BenchProduct& product, int clients, double seconds) {
  std::vector<Loop> loops(clients);
  std::vector<std::thread> threads;
  const auto start = SteadyClock::now();
  const auto end = start + std::chrono::duration<double>(seconds);
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&product, &loops, end, i] {
      Loop& loop = loops[i];
      do {
        const client::CallOutcome outcome = product.Call(i);
        if (!outcome.status.ok()) {
          ++loop.failures;
          loop.error = std::string(outcome.status.message());
          continue;
        }
        const client::MatmulInfo& info = outcome.info;
        loop.latency_ms.push_back(Ms(info.round_trip));
        loop.stages.push_back({Ms(info.receive), Ms(info.decode), Ms(info.queue), Ms(info.copy_in),
                               Ms(info.kernel_time), Ms(info.verify), Ms(info.copy_out)});
        loop.launches += 1.0 / (info.batched_with + 1);
        loop.respond_ms.push_back(0);  // there is no D to wait for
      } while (SteadyClock::now() < end && loop.failures < 100);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Loop all;
  for (const Loop& loop : loops) all.Append(loop);
  all.wall_seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
  return all;
}

}  // namespace tcgemm
