#include "client/lane_product.h"

#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/call.h"
#include "client/matrix_transfer.h"
#include "client/product_info.h"
#include "client/range.h"
#include "client/wire.h"
#include "tcgemm/v1/matmul.grpc.pb.h"

namespace tcgemm::client {
namespace {

// What is left of a killed client's matrices goes so long after its timeout.
Nanos TimeToLive(Nanos timeout) {
  constexpr Nanos kMargin = std::chrono::minutes(1);
  constexpr Nanos kMost = std::chrono::hours(24 * 365);
  return std::min(timeout, kMost) + kMargin;
}

int64_t Seconds(Nanos time) {
  return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

// The work of one product, from attempt to attempt. What an attempt reached, the next one goes on
// from; what the server lost meanwhile is made again.
class LaneProduct {
 public:
  LaneProduct(Lanes& connections, const LaneProductArgs& args, Matrix& d, Nanos timeout)
      : connections_(connections),
        args_(args),
        d_(d),
        prefix_(absl::StrCat("lanes/", RandomHex(), "/")),
        ttl_(TimeToLive(timeout)),
        a_(args.a, {.name = prefix_ + "a", .ttl = ttl_}),
        b_(args.b, {.name = prefix_ + "b", .ttl = ttl_}) {
    d_.Reshape(args.a.op_rows(), args.b.op_cols(), args.output);
  }
  LaneProduct(const LaneProduct&) = delete;
  LaneProduct& operator=(const LaneProduct&) = delete;
  ~LaneProduct() {
    DeleteOperands();
    for (const std::string& handle : results_) DeleteQuietly(connections_.first(), handle);
  }

  Attempt Try(TimePoint deadline) {
    Attempt attempt = TryStages(deadline);
    if (!args_.patient && absl::IsResourceExhausted(attempt.status)) {
      attempt.pushback = Nanos(-1);
    }
    const bool lost = absl::IsNotFound(attempt.status) ||
                      absl::IsFailedPrecondition(attempt.status) || absl::IsAborted(attempt.status);
    if (!lost) return attempt;
    // Room was needed for others, or the server is another process now.
    multiplied_ = false;
    return {.status = absl::UnavailableError(absl::StrCat("a temporary matrix left the server: ",
                                                          std::string(attempt.status.message())))};
  }

  const MatmulInfo& info() const { return info_; }

 private:
  Attempt TryStages(TimePoint deadline) {
    if (!multiplied_) {
      if (Attempt up = SendOperands(deadline); !up.status.ok()) return up;
      if (Attempt product = Multiply(deadline); !product.status.ok()) return product;
    }
    // Nobody needs the operands any more: they go while D comes.
    std::thread deletion([this] { DeleteOperands(); });
    Attempt down = connections_.Fetch(result_, args_.lanes, deadline);
    deletion.join();
    return down;
  }

  Attempt SendOperands(TimePoint deadline) {
    for (Upload* operand : {&a_, &b_}) {
      Attempt opened = operand->Open({.channel = connections_.first(), .deadline = deadline});
      if (!opened.status.ok()) return opened;
    }
    std::array<Filling, 2> both = {a_.filling(), b_.filling()};
    if (both[0].complete && both[1].complete) return {};
    return connections_.Fill(absl::MakeSpan(both), args_.lanes, deadline);
  }

  Attempt Multiply(TimePoint deadline) {
    v1::MatmulRequest request;
    request.mutable_a()->set_handle(a_.handle());
    request.mutable_a()->set_transposed(args_.a.transposed);
    request.mutable_b()->set_handle(b_.handle());
    request.mutable_b()->set_transposed(args_.b.transposed);
    request.set_output_dtype(args_.output == DType::kFp32 ? v1::FP32 : v1::BF16);
    // A name of its own for each attempt: the last one's may hold what nobody heard of.
    results_.push_back(absl::StrCat(prefix_, "d", results_.size()));
    request.mutable_output()->set_handle(results_.back());
    request.mutable_output()->set_ttl_seconds(Seconds(ttl_));
    grpc::ClientContext context;
    SetDeadline(deadline, context);
    v1::MatmulResponse response;
    const grpc::Status status =
        v1::MatmulService::NewStub(connections_.first())->Matmul(&context, request, &response);
    if (!status.ok()) return AttemptOf(status, context, *connections_.first());
    if (response.handle() != results_.back()) {
      return {.status = absl::DataLossError("the server kept no result")};
    }
    info_ = MatmulInfoOf(response);
    result_ = {.handle = results_.back(),
               .missing = CutEvenly(DenseBytes(d_.view()), args_.lanes, Lanes::kPieceBytes),
               .place = [this](const v1::MatrixInfo& info) { return Place(info); }};
    multiplied_ = true;
    return {};
  }

  absl::StatusOr<char*> Place(const v1::MatrixInfo& info) {
    const bool fp32 = args_.output == DType::kFp32;
    if (info.rows() == d_.rows() && info.cols() == d_.cols() &&
        info.dtype() == (fp32 ? v1::FP32 : v1::BF16)) {
      return d_.data<char>();
    }
    return absl::DataLossError("the result is not the product that was asked for");
  }

  void DeleteOperands() {
    for (Upload* operand : {&a_, &b_}) {
      if (operand->may_exist()) DeleteQuietly(connections_.first(), operand->handle());
      operand->Forget();
    }
  }

  Lanes& connections_;
  const LaneProductArgs args_;
  Matrix& d_;
  const std::string prefix_;
  const Nanos ttl_;
  Upload a_;
  Upload b_;
  std::vector<std::string> results_;  // the names of D that the server was told
  bool multiplied_ = false;
  Fetching result_;
  MatmulInfo info_;
};

}  // namespace

absl::StatusOr<MatmulInfo> MultiplyOverLanes(Lanes& connections, const LaneProductArgs& args,
                                             Matrix& d, const CallOptions& options) {
  TCGEMM_RETURN_IF_ERROR(CheckProduct(args.a, args.b, args.output));
  const TimePoint started = Clock::Real()->Now();
  RetryOutcome outcome;
  MatmulInfo info;
  {
    LaneProduct product(connections, args, d, options.timeout);
    outcome = CallWithin(options, [&](TimePoint deadline) { return product.Try(deadline); });
    info = product.info();
  }
  TCGEMM_RETURN_IF_ERROR(outcome.status);
  info.attempts = outcome.attempts;
  info.lanes = args.lanes;
  info.round_trip = Clock::Real()->Now() - started;
  return info;
}

}  // namespace tcgemm::client
