#include "client/laned_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/lane_policy.h"
#include "client/lane_product.h"
#include "client/lanes.h"
#include "client/range.h"
#include "client/wire.h"

namespace tcgemm::client {
namespace {

constexpr Nanos kMemory = std::chrono::minutes(1);

// The server cannot do it this way, whatever the product; one connection may still do.
bool IsRefusal(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsResourceExhausted(status) ||
         absl::IsPermissionDenied(status);
}

class LanedClient final : public Client {
 public:
  LanedClient(const ClientOptions& options, std::shared_ptr<grpc::Channel> channel,
              std::unique_ptr<Client> single, std::function<int(int asked, size_t bytes)> policy)
      : asked_(options.lanes),
        policy_(std::move(policy)),
        lanes_(options, std::move(channel)),
        single_(std::move(single)) {}

  absl::StatusOr<MatmulInfo> Matmul(const MatrixView& a, const MatrixView& b, DType output,
                                    Matrix& d, const CallOptions& options) override {
    TCGEMM_RETURN_IF_ERROR(CheckProduct(a, b, output));
    const size_t bytes = DenseBytes(a) + DenseBytes(b) +
                         static_cast<size_t>(a.op_rows() * b.op_cols()) * DTypeSize(output);
    const int lanes = policy_(asked_, bytes);
    const bool automatic = asked_ == kAutomaticLanes;
    if (lanes == 1 || options.fastest || (automatic && WasRefused(bytes))) {
      return single_->Matmul(a, b, output, d, options);
    }
    const TimePoint started = Clock::Real()->Now();
    absl::StatusOr<MatmulInfo> info = MultiplyOverLanes(
        lanes_, {.a = a, .b = b, .output = output, .lanes = lanes, .patient = !automatic}, d,
        options);
    if (info.ok() || !automatic || !IsRefusal(info.status())) return info;
    Remember(absl::IsResourceExhausted(info.status()) ? bytes : 0);
    const std::string why = absl::StrCat(absl::StatusCodeToString(info.status().code()), ": ",
                                         std::string(info.status().message()));
    CallOptions rest = options;
    rest.timeout = std::max(Nanos(1), options.timeout - (Clock::Real()->Now() - started));
    TCGEMM_ASSIGN_OR_RETURN(MatmulInfo single, single_->Matmul(a, b, output, d, rest));
    single.fallback = why;
    return single;
  }

  // C and the bias travel with the request, so that goes over one connection.
  absl::StatusOr<MatmulInfo> MatmulWith(const Epilogue& epilogue, const MatrixView& a,
                                        const MatrixView& b, DType output, Matrix& d,
                                        const CallOptions& options) override {
    if (epilogue.is_default()) return Matmul(a, b, output, d, options);
    TCGEMM_ASSIGN_OR_RETURN(MatmulInfo info,
                            single_->MatmulWith(epilogue, a, b, output, d, options));
    if (asked_ != kAutomaticLanes)
      info.fallback = "it has an epilogue (alpha, C, bias, activation)";
    return info;
  }

  absl::StatusOr<ServerInfo> GetServerInfo(const CallOptions& options) override {
    return single_->GetServerInfo(options);
  }
  absl::StatusOr<Health> CheckHealth(const std::string& service,
                                     const CallOptions& options) override {
    return single_->CheckHealth(service, options);
  }

 private:
  bool WasRefused(size_t bytes) const {
    const MutexLock lock(&mutex_);
    return bytes >= refused_bytes_ && Clock::Real()->Now() - refused_at_ < kMemory;
  }
  void Remember(size_t bytes) {
    const MutexLock lock(&mutex_);
    refused_bytes_ = bytes;
    refused_at_ = Clock::Real()->Now();
  }

  const int asked_;
  const std::function<int(int asked, size_t bytes)> policy_;
  Lanes lanes_;
  const std::unique_ptr<Client> single_;
  mutable Mutex mutex_;
  // Products of so many bytes and more were refused, lately.
  size_t refused_bytes_ ABSL_GUARDED_BY(mutex_) = SIZE_MAX;
  TimePoint refused_at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Client> MakeLanedClient(const ClientOptions& options,
                                        std::shared_ptr<grpc::Channel> channel,
                                        std::unique_ptr<Client> single,
                                        std::function<int(int asked, size_t bytes)> policy) {
  return std::make_unique<LanedClient>(options, std::move(channel), std::move(single),
                                       std::move(policy));
}

}  // namespace tcgemm::client
