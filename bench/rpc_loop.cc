#include "bench/rpc_loop.h"

#include <chrono>
#include <thread>

#include "base/clock.h"

namespace tcgemm {
namespace {

using SteadyClock = std::chrono::steady_clock;

double Ms(Nanos time) { return std::chrono::duration<double, std::milli>(time).count(); }

}  // namespace

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
