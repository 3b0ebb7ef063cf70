#include "server/rpc/call_record.h"

#include <grpcpp/security/auth_context.h>

#include <utility>
#include <vector>

#include "server/security/identity.h"

namespace tcgemm {
namespace {

std::string_view View(const grpc::string_ref& text) { return {text.data(), text.size()}; }

absl::StatusOr<Caller> IdentifyCaller(const CallContext& context,
                                      const grpc::CallbackServerContext& grpc_context) {
  PeerEvidence evidence;
  std::shared_ptr<const grpc::AuthContext> auth;  // owns the names
  std::vector<grpc::string_ref> names;
  // Without TLS nothing of what gRPC calls an identity was verified.
  if (context.options.certificates != nullptr) auth = grpc_context.auth_context();
  if (auth != nullptr && auth->IsPeerAuthenticated()) names = auth->GetPeerIdentity();
  if (!names.empty()) evidence.certificate_name = View(names.front());
  if (context.options.tokens != nullptr) {
    const auto range = grpc_context.client_metadata().equal_range("authorization");
    for (auto it = range.first; it != range.second; ++it) {
      evidence.authorization.push_back(View(it->second));
    }
  }
  const std::optional<UnixPeer> peer = context.uids.Find(grpc_context.peer());
  if (peer.has_value()) evidence.uid = peer->uid;
  const TokenFile* const tokens = context.options.tokens;
  const std::shared_ptr<const TokenTable> table = tokens == nullptr ? nullptr : tokens->table();
  return Identify(evidence, table.get());
}

PeerKind KindOf(const CallContext& context, const std::string& peer) {
  if (peer.rfind("fd:", 0) == 0) return PeerKind::kUnix;
  return context.options.certificates == nullptr ? PeerKind::kTcp : PeerKind::kTls;
}

}  // namespace

CallRecord::CallRecord(CallContext* context, const grpc::CallbackServerContext& grpc_context,
                       const char* method)
    : context_(context),
      grpc_context_(grpc_context),
      method_(method),
      started_at_(context->clock->Now()) {
  context_->events->OnCallStarted(method_);
  absl::StatusOr<Caller> caller = IdentifyCaller(*context, grpc_context);
  credentials_ = caller.status();
  if (caller.ok()) caller_ = *std::move(caller);
  if (context_->options.access_log == nullptr) return;
  MutexLock lock(&mutex_);
  entry_.method = method_;
  entry_.caller = caller_;
  entry_.peer = KindOf(*context, grpc_context.peer());
  entry_.trace_id = TraceId();
}

std::string CallRecord::TraceId() const {
  const auto& metadata = grpc_context_.client_metadata();
  const auto trace = metadata.find("traceparent");
  return trace == metadata.end() ? "" : TraceIdOf(View(trace->second));
}

std::optional<Refusal> CallRecord::CheckArrival(TimePoint deadline) const {
  const auto refuse = [](absl::Status status, RejectReason reason) {
    return Refusal{.status = std::move(status), .reason = reason};
  };
  if (context_->refusing.load()) {
    return refuse(absl::UnavailableError("the server is draining: try another one"),
                  RejectReason::kDraining);
  }
  if (!context_->ready.load()) {
    return refuse(absl::UnavailableError("the server is not ready yet"), RejectReason::kNotReady);
  }
  if (!credentials_.ok()) return refuse(credentials_, RejectReason::kCredentials);
  if (!context_->engine->healthy()) {
    return refuse(absl::UnavailableError("the device is lost: try another server"),
                  RejectReason::kNotReady);
  }
  if (deadline <= started_at_) {
    return refuse(absl::DeadlineExceededError("the deadline had passed when the call arrived"),
                  RejectReason::kDeadline);
  }
  return std::nullopt;
}

std::optional<Refusal> CallRecord::Admit(TimePoint deadline) {
  if (std::optional<Refusal> refusal = CheckArrival(deadline)) return refusal;
  absl::StatusOr<CallerShares::Share> share = context_->shares.Start(caller_);
  if (!share.ok()) {
    return Refusal{.status = share.status(), .reason = RejectReason::kCaller, .may_retry = true};
  }
  MutexLock lock(&mutex_);
  share_ = *std::move(share);
  return std::nullopt;
}

std::optional<Refusal> CallRecord::TakeBytes(size_t bytes) {
  MutexLock lock(&mutex_);
  absl::Status taken = share_.AddBytes(bytes);
  if (taken.ok()) return std::nullopt;
  return Refusal{.status = std::move(taken),
                 .reason = RejectReason::kCaller,
                 .may_retry = !context_->shares.IsBeyondLimit(bytes)};
}

void CallRecord::NoteRequest(uint64_t bytes) {
  MutexLock lock(&mutex_);
  entry_.bytes_in += bytes;
}

void CallRecord::NoteResponse(uint64_t bytes) {
  MutexLock lock(&mutex_);
  entry_.bytes_out += bytes;
}

void CallRecord::NoteShape(const GemmShape& shape) {
  MutexLock lock(&mutex_);
  entry_.shape = shape;
}

void CallRecord::NoteStages(const std::array<Nanos, kStageCount>& stages) {
  MutexLock lock(&mutex_);
  entry_.stages = stages;
}

void CallRecord::NoteAnswer() {
  MutexLock lock(&mutex_);
  share_.NoteAnswer();
}

void CallRecord::End(const absl::Status& status, CallLength length) {
  const Nanos duration = context_->clock->Now() - started_at_;
  MutexLock lock(&mutex_);
  share_.Reset();
  if (context_->options.access_log != nullptr) {
    entry_.code = status.code();
    entry_.duration = duration;
    context_->options.access_log->Write(entry_);
  }
  KeepIfNotable(status, duration, length);
  context_->events->OnCallEnded(method_, status.code(), duration);
}

void CallRecord::KeepIfNotable(const absl::Status& status, Nanos duration, CallLength length) {
  NotableCalls* const calls = context_->options.notable_calls;
  const Nanos ours = length == CallLength::kServers ? duration : Nanos(0);
  if (calls == nullptr || !calls->Wants(status.code(), ours)) return;
  calls->Add({.ended_unix_ms = UnixMilliseconds(),
              .method = method_,
              .code = status.code(),
              .message = std::string(status.message()),
              .duration = duration,
              .caller = caller_.identity,
              .shape = entry_.shape,
              .stages = entry_.stages,
              .trace_id = TraceId()});
}

}  // namespace tcgemm
