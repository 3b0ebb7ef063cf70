#include "client/call.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace tcgemm::client {
namespace {

// gRPC's retry specification (A6): a number of milliseconds; anything else means: do not retry.
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

}  // namespace

TimePoint DeadlineIn(Nanos left) {
  constexpr Nanos kLongest = std::chrono::hours(24 * 365 * 10);
  return Clock::Real()->Now() + std::min(left, kLongest);
}

void SetDeadline(TimePoint deadline, grpc::ClientContext& context) {
  const Nanos left = deadline - Clock::Real()->Now();
  context.set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left.count(), GPR_TIMESPAN)));
}

Attempt AttemptOf(const grpc::Status& status, const grpc::ClientContext& context,
                  grpc::Channel& channel) {
  Attempt attempt{.status = absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                                         status.error_message())};
  if (status.ok()) return attempt;
  const grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/false);
  attempt.unreachable = state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_CONNECTING;
  attempt.pushback = Pushback(context);
  return attempt;
}

RetryOutcome CallWithin(const CallOptions& options,
                        const std::function<Attempt(TimePoint deadline)>& attempt) {
  if (options.timeout <= Nanos(0)) {
    return {.status =
                absl::InvalidArgumentError("CallOptions.timeout is required and must be > 0")};
  }
  const RetryEnvironment environment{.sleep = [](Nanos wait) { std::this_thread::sleep_for(wait); },
                                     .seed = NewSeed()};
  return CallWithRetries({}, environment, options.timeout, [&](Nanos left) {
    Attempt result = attempt(DeadlineIn(left));
    if (!options.retry) result.pushback = Nanos(-1);
    return result;
  });
}

uint64_t NewSeed() {
  static std::atomic<uint64_t> calls{std::random_device()()};
  return calls.fetch_add(1);
}

std::string RandomHex() {
  std::random_device device;  // of the system
  return absl::StrFormat("%08x%08x%08x%08x", device(), device(), device(), device());
}

absl::Status Dump(const grpc::ByteBuffer& buffer, std::vector<grpc::Slice>& slices,
                  std::vector<absl::string_view>& pieces) {
  if (!buffer.Dump(&slices).ok()) return absl::DataLossError("the response cannot be read");
  pieces.reserve(slices.size());
  for (const grpc::Slice& slice : slices) {
    pieces.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return absl::OkStatus();
}

void CallGroup::Cancel() {
  const MutexLock lock(&mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : contexts_) context->TryCancel();
}

bool CallGroup::cancelled() const {
  const MutexLock lock(&mutex_);
  return cancelled_;
}

CallGroup::Context::Context(CallGroup* group, TimePoint deadline) : group_(group) {
  SetDeadline(deadline, context_);
  if (group_ == nullptr) return;
  const MutexLock lock(&group_->mutex_);
  group_->contexts_.insert(&context_);
  // Before the call starts: gRPC then cancels it as it starts.
  if (group_->cancelled_) context_.TryCancel();
}

CallGroup::Context::~Context() {
  if (group_ == nullptr) return;
  const MutexLock lock(&group_->mutex_);
  group_->contexts_.erase(&context_);
}

}  // namespace tcgemm::client
