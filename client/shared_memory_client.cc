#include "client/shared_memory_client.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/status_macros.h"
#include "client/region_client.h"
#include "client/shared_region.h"
#include "matrix/matrix.h"

namespace tcgemm::client {
namespace {

// Below this a larger region later would cost more than it saves now.
constexpr size_t kLeastRegion = size_t{1} << 20;

void CopyRows(const MatrixView& from, const MutableMatrixView& to) {
  const size_t size = DTypeSize(from.dtype);
  for (int64_t row = 0; row < from.rows; ++row) {
    std::memcpy(
        static_cast<std::byte*>(to.data) + static_cast<size_t>(row * to.ld) * size,
        static_cast<const std::byte*>(from.data) + static_cast<size_t>(row * from.ld) * size,
        static_cast<size_t>(from.cols) * size);
  }
}

double RoomFor(int64_t rows, int64_t cols, DType dtype) {
  return static_cast<double>(rows) * static_cast<double>(cols) *
             static_cast<double>(DTypeSize(dtype)) +
         SharedRegion::kAlignment;
}

// A matrix in a region, while it is needed.
class Placed {
 public:
  static absl::StatusOr<Placed> In(SharedRegion& region, int64_t rows, int64_t cols, DType dtype) {
    TCGEMM_ASSIGN_OR_RETURN(const MutableMatrixView view, region.AllocateMatrix(rows, cols, dtype));
    return Placed(&region, view);
  }
  Placed(Placed&& other) noexcept
      : region_(std::exchange(other.region_, nullptr)), view_(other.view_) {}
  ~Placed() {
    if (region_ != nullptr) region_->Free(view_.data);
  }
  const MutableMatrixView& view() const { return view_; }
  Factor AsFactor(bool transposed) const {
    Factor factor{.view = AsConst(view_)};
    factor.view.transposed = transposed;
    return factor;
  }

 private:
  Placed(SharedRegion* region, const MutableMatrixView& view) : region_(region), view_(view) {}

  SharedRegion* region_;
  MutableMatrixView view_;
};

// C and the bias travel with the call.
FactorEpilogue AsFactors(const Epilogue& epilogue) {
  FactorEpilogue factors = {
      .alpha = epilogue.alpha, .beta = epilogue.beta, .activation = epilogue.activation};
  if (epilogue.reads_c()) factors.c = Factor{.view = epilogue.c};
  if (epilogue.has_bias()) factors.bias = Factor{.view = epilogue.bias};
  return factors;
}

class SharedMemoryClient final : public Client {
 public:
  SharedMemoryClient(std::unique_ptr<Client> client, std::unique_ptr<RegionClient> products)
      : client_(std::move(client)), products_(std::move(products)) {}

  absl::StatusOr<MatmulInfo> Matmul(const MatrixView& a, const MatrixView& b, DType output,
                                    Matrix& d, const CallOptions& options) override {
    return MatmulWith({}, a, b, output, d, options);
  }
  absl::StatusOr<MatmulInfo> MatmulWith(const Epilogue& epilogue, const MatrixView& a,
                                        const MatrixView& b, DType output, Matrix& d,
                                        const CallOptions& options) override {
    TCGEMM_RETURN_IF_ERROR(ValidateEpilogue(epilogue, {.m = a.op_rows(), .n = b.op_cols()}));
    const TimePoint started = Clock::Real()->Now();
    MutexLock lock(&mutex_);
    TCGEMM_RETURN_IF_ERROR(MakeRoom(a, b, output, options));
    SharedRegion& region = *region_;
    TCGEMM_ASSIGN_OR_RETURN(const Placed in_a, Placed::In(region, a.rows, a.cols, a.dtype));
    TCGEMM_ASSIGN_OR_RETURN(const Placed in_b, Placed::In(region, b.rows, b.cols, b.dtype));
    TCGEMM_ASSIGN_OR_RETURN(const Placed out, Placed::In(region, a.op_rows(), b.op_cols(), output));
    CopyRows(a, in_a.view());
    CopyRows(b, in_b.view());
    TCGEMM_ASSIGN_OR_RETURN(
        MatmulInfo info,
        products_->MultiplyWith(AsFactors(epilogue), region, in_a.AsFactor(a.transposed),
                                in_b.AsFactor(b.transposed), out.view(), options));
    d.Reshape(a.op_rows(), b.op_cols(), output);
    std::memcpy(d.data<std::byte>(), out.view().data, d.bytes());
    info.round_trip = Clock::Real()->Now() - started;
    return info;
  }
  absl::StatusOr<ServerInfo> GetServerInfo(const CallOptions& options) override {
    return client_->GetServerInfo(options);
  }
  absl::StatusOr<Health> CheckHealth(const std::string& service,
                                     const CallOptions& options) override {
    return client_->CheckHealth(service, options);
  }

 private:
  absl::Status MakeRoom(const MatrixView& a, const MatrixView& b, DType output,
                        const CallOptions& options) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const double needed = RoomFor(a.rows, a.cols, a.dtype) + RoomFor(b.rows, b.cols, b.dtype) +
                          RoomFor(a.op_rows(), b.op_cols(), output);
    if (needed > 0x1p62) return absl::ResourceExhaustedError("no region is so large");
    const size_t bytes = std::max(kLeastRegion, static_cast<size_t>(needed));
    const bool held = region_ != nullptr && region_->status().ok();
    if (held && region_->bytes() >= bytes) return absl::OkStatus();
    region_.reset();  // first: both may not fit the budget
    TCGEMM_ASSIGN_OR_RETURN(region_, products_->Open(bytes, options));
    return absl::OkStatus();
  }

  const std::unique_ptr<Client> client_;
  const std::unique_ptr<RegionClient> products_;
  Mutex mutex_;
  std::unique_ptr<SharedRegion> region_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> CreateSharedMemoryClient(const ClientOptions& options) {
  TCGEMM_ASSIGN_OR_RETURN(std::unique_ptr<RegionClient> products, RegionClient::Create(options));
  TCGEMM_ASSIGN_OR_RETURN(std::unique_ptr<Client> client, Client::Create(options));
  return std::make_unique<SharedMemoryClient>(std::move(client), std::move(products));
}

}  // namespace tcgemm::client
