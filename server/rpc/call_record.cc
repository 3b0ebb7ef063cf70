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
    : context_(context), method_(method), started_at_(context->clock->Now()) {
  context_->events->OnCallStarted(method_);
  absl::StatusOr<Caller> caller = IdentifyCaller(*context, grpc_context);
  credentials_ = caller.status();
  if (caller.ok()) caller_ = *std::move(caller);
  if (context_->options.access_log == nullptr) return;
  MutexLock lock(&mutex_);
  entry_.method = method_;
  entry_.caller = caller_;
  entry_.peer = KindOf(*context, grpc_context.peer());
  const auto trace = grpc_context.client_metadata().find("traceparent");
  if (trace != grpc_context.client_metadata().end()) {
    entry_.trace_id = TraceIdOf(View(trace->second));
  }
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

void CallRecord::End(absl::StatusCode code) {
  const Nanos duration = context_->clock->Now() - started_at_;
  MutexLock lock(&mutex_);
  share_.Reset();
  if (context_->options.access_log != nullptr) {
    entry_.code = code;
    entry_.duration = duration;
    context_->options.access_log->Write(entry_);
  }
  context_->events->OnCallEnded(method_, code, duration);
}

}  // namespace tcgemm
