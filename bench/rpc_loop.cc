#include "bench/rpc_loop.h"

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "client/cli/bench_region.h"
#include "client/wire_reader.h"

namespace tcgemm {
namespace {

using SteadyClock = std::chrono::steady_clock;

using client::WireReader;
using client::WireTag;
using client::WireType;

// The timings of a MatmulResponse; its D, which comes last, is not looked at.
Stages ReadStages(WireReader reader) {
  Stages stages{};
  while (const uint32_t tag = reader.ReadTag()) {
    if (tag != WireTag(4, WireType::kBytes)) {
      reader.Skip(tag);
      continue;
    }
    WireReader timings = reader.ReadMessage();
    while (const uint32_t stage = timings.ReadTag()) {
      if (stage % 8 != 0 || stage / 8 < 1 || stage / 8 > stages.size()) {
        timings.Skip(stage);
      } else {
        stages[stage / 8 - 1] = static_cast<double>(timings.ReadVarint()) / 1e6;
      }
    }
    break;
  }
  return stages;
}

double Ms(Nanos time) { return std::chrono::duration<double, std::milli>(time).count(); }

}  // namespace

Stages ReadStages(const grpc::ByteBuffer& response, bool is_stream) {
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) return {};
  std::vector<absl::string_view> pieces;
  for (const grpc::Slice& slice : slices) {
    pieces.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  WireReader reader(pieces);
  if (!is_stream) return ReadStages(reader);
  return reader.ReadTag() == WireTag(1, WireType::kBytes) ? ReadStages(reader.ReadMessage())
                                                          : Stages{};
}

absl::StatusOr<std::unique_ptr<client::BenchProduct>> OpenRegion(const Cell& cell) {
  return client::CreateRegionProduct({.server = cell.server,
                                      .shape = {.m = cell.n, .n = cell.n, .k = cell.n},
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
