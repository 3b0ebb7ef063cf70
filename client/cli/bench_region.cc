#include "client/cli/bench_region.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "client/matrix_client.h"
#include "client/region_client.h"
#include "client/shared_region.h"
#include "matrix/matrix.h"

namespace tcgemm::client {
namespace {

size_t RoundUp(size_t bytes) {
  return (bytes + SharedRegion::kAlignment - 1) / SharedRegion::kAlignment *
         SharedRegion::kAlignment;
}

class RegionProduct final : public BenchProduct {
 public:
  explicit RegionProduct(const RegionBenchOptions& options)
      : options_(options),
        call_options_{.timeout = options.timeout, .retry = false},
        a_(RandomOperand(options.shape.m, options.shape.k, options.transpose_a, options.seed)),
        b_(RandomOperand(options.shape.k, options.shape.n, options.transpose_b, options.seed + 1)),
        results_(static_cast<size_t>(options.clients)) {
    factor_a_.view = options.transpose_a ? a_.transposed_view() : a_.view();
    factor_b_.view = options.transpose_b ? b_.transposed_view() : b_.view();
  }
  ~RegionProduct() override {
    for (const Factor& factor : {factor_a_, factor_b_}) {
      if (!factor.handle.empty()) (void)matrices_->Delete(factor.handle, call_options_);
    }
  }

  absl::Status Prepare() {
    for (int i = 0; i < options_.connections; ++i) {
      TCGEMM_ASSIGN_OR_RETURN(std::unique_ptr<RegionClient> client,
                              RegionClient::Create(options_.server));
      clients_.push_back(std::move(client));
    }
    const size_t d_bytes = static_cast<size_t>(options_.shape.m) *
                           static_cast<size_t>(options_.shape.n) * DTypeSize(options_.output);
    const size_t operands = options_.resident ? 0 : RoundUp(a_.bytes()) + RoundUp(b_.bytes());
    TCGEMM_ASSIGN_OR_RETURN(
        region_, clients_[0]->Open(operands + results_.size() * RoundUp(d_bytes), call_options_));
    for (Result& result : results_) {
      TCGEMM_ASSIGN_OR_RETURN(
          result.d, region_->AllocateMatrix(options_.shape.m, options_.shape.n, options_.output));
    }
    TCGEMM_RETURN_IF_ERROR(PlaceOperand(a_, options_.transpose_a, factor_a_));
    return PlaceOperand(b_, options_.transpose_b, factor_b_);
  }

  CallOutcome Call(int client) override {
    const auto index = static_cast<size_t>(client);
    Result& result = results_[index];
    const absl::StatusOr<MatmulInfo> info = clients_[index % clients_.size()]->Multiply(
        *region_, factor_a_, factor_b_, result.d, call_options_);
    if (!info.ok()) return {.status = info.status()};
    result.is_there = true;
    return {.info = *info};
  }

  absl::StatusOr<std::optional<Proof>> ProveOne() const override {
    for (const Result& result : results_) {
      if (!result.is_there) continue;
      TCGEMM_ASSIGN_OR_RETURN(
          Proof proof,
          Prove(options_.transpose_a ? a_.transposed_view() : a_.view(),
                options_.transpose_b ? b_.transposed_view() : b_.view(), AsConst(result.d)));
      return proof;
    }
    return std::nullopt;
  }

 private:
  struct Result {
    MutableMatrixView d;
    bool is_there = false;
  };

  // On the server, or in the region.
  absl::Status PlaceOperand(const Matrix& matrix, bool transposed, Factor& factor) {
    if (options_.resident) {
      if (matrices_ == nullptr) {
        TCGEMM_ASSIGN_OR_RETURN(matrices_, MatrixClient::Create(options_.server));
      }
      TCGEMM_ASSIGN_OR_RETURN(factor.handle, matrices_->Upload(matrix.view(), {}, call_options_));
      factor.transposed = transposed;
      return absl::OkStatus();
    }
    TCGEMM_ASSIGN_OR_RETURN(const MutableMatrixView placed,
                            region_->AllocateMatrix(matrix.rows(), matrix.cols(), matrix.dtype()));
    std::memcpy(placed.data, matrix.data<std::byte>(), matrix.bytes());
    factor.view.data = placed.data;
    return absl::OkStatus();
  }

  const RegionBenchOptions options_;
  const CallOptions call_options_;
  const Matrix a_;
  const Matrix b_;
  std::vector<std::unique_ptr<RegionClient>> clients_;
  std::unique_ptr<MatrixClient> matrices_;
  std::unique_ptr<SharedRegion> region_;
  Factor factor_a_;
  Factor factor_b_;
  std::vector<Result> results_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<BenchProduct>> CreateRegionProduct(
    const RegionBenchOptions& options) {
  auto product = std::make_unique<RegionProduct>(options);
  TCGEMM_RETURN_IF_ERROR(product->Prepare());
  return product;
}

}  // namespace tcgemm::client
