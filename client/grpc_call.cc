#include "client/grpc_call.h"

#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace tcgemm::client {

absl::Status ToAbsl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

void SetDeadline(Nanos left, grpc::ClientContext& context) {
  context.set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left.count(), GPR_TIMESPAN)));
}

std::optional<Nanos> Pushback(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto entry = trailers.find("grpc-retry-pushback-ms");
  if (entry == trailers.end()) return std::nullopt;
  int64_t ms = 0;
  constexpr int64_t kMaxMs = 24 * 3600 * 1000;
  const absl::string_view text(entry->second.data(), entry->second.size());
  if (!absl::SimpleAtoi(text, &ms) || ms < 0 || ms > kMaxMs) return Nanos(-1);
  return std::chrono::milliseconds(ms);
}

bool IsUnreachable(grpc::Channel& channel) {
  const grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/false);
  return state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_CONNECTING;
}

RetryEnvironment RealRetryEnvironment() {
  static std::atomic<uint64_t> calls{std::random_device()()};
  return {.sleep = [](Nanos wait) { std::this_thread::sleep_for(wait); },
          .seed = calls.fetch_add(1)};
}

}  // namespace tcgemm::client
