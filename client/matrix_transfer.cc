#include "client/matrix_transfer.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/lane_policy.h"
#include "tcgemm/v1/matmul.grpc.pb.h"

namespace tcgemm::client {
namespace {

// What one stream may carry before its matrix has a handle that a second stream could go on with.
constexpr size_t kMostUnheardBytes = size_t{4} << 20;

absl::Status CheckUpload(const MatrixView& matrix) {
  if (matrix.dtype != DType::kBf16 || matrix.rows < 1 || matrix.cols < 1 ||
      matrix.ld < matrix.cols || matrix.data == nullptr) {
    return absl::InvalidArgumentError("a matrix to send must be bf16 and not empty");
  }
  return absl::OkStatus();
}

// One round: what `upload` lacks, once the server has said what that is.
Attempt FillOne(Lanes& connections, int lanes, Upload& upload, TimePoint deadline) {
  Attempt opened = upload.Open({.channel = connections.first(), .deadline = deadline});
  if (!opened.status.ok() || upload.filling().complete) return opened;
  return upload.Judge(connections.Fill({&upload.filling(), 1}, lanes, deadline));
}

// The place of a download's bytes: shaped by the first stream, the same for all others.
class Place {
 public:
  explicit Place(Matrix& matrix) : matrix_(matrix) {}

  absl::StatusOr<char*> Take(const v1::MatrixInfo& info) {
    constexpr double kMostElements = 0x1p40;
    const double elements = static_cast<double>(info.rows()) * static_cast<double>(info.cols());
    const DType dtype = info.dtype() == v1::FP32 ? DType::kFp32 : DType::kBf16;
    if (info.rows() < 1 || info.cols() < 1 || elements > kMostElements ||
        static_cast<size_t>(info.bytes()) !=
            static_cast<size_t>(info.rows() * info.cols()) * DTypeSize(dtype)) {
      return absl::DataLossError("the download does not say what matrix it is");
    }
    const MutexLock lock(&mutex_);
    if (!shaped_) matrix_.Reshape(info.rows(), info.cols(), dtype);
    shaped_ = true;
    if (matrix_.rows() == info.rows() && matrix_.cols() == info.cols() &&
        matrix_.dtype() == dtype) {
      return matrix_.data<char>();
    }
    return absl::AbortedError("the matrix was replaced by another one while it was read");
  }

 private:
  Mutex mutex_;
  Matrix& matrix_;
  bool shaped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

// ---- Up ----

Upload::Upload(const MatrixView& matrix, const UploadOptions& options)
    : options_(options),
      is_new_(true),
      creation_key_(options.name.empty() ? "" : RandomHex()),
      filling_{.matrix = matrix} {}

Upload::Upload(const MatrixView& matrix, const std::string& handle)
    : is_new_(false), filling_{.matrix = matrix, .handle = handle} {}

v1::UploadMatrixRequest::Header Upload::Header() const {
  v1::UploadMatrixRequest::Header header;
  header.set_rows(filling_.matrix.rows);
  header.set_cols(filling_.matrix.cols);
  header.set_dtype(v1::BF16);
  if (is_new_ && (!options_.name.empty() || filling_.handle.empty())) {
    header.set_name(options_.name);
    header.set_creation_key(creation_key_);
    header.set_ttl_seconds(std::chrono::duration_cast<std::chrono::seconds>(options_.ttl).count());
  } else {
    header.set_handle(filling_.handle);
    header.set_generation(filling_.generation);
  }
  return header;
}

Attempt Upload::Open(const StreamPath& path, RangeQueue* queue) {
  UploadOutcome outcome = SendRanges(path, Header(), filling_.matrix, queue);
  if (!outcome.attempt.status.ok()) return Judge(std::move(outcome.attempt));
  may_exist_ = true;
  filling_.handle = outcome.answer.handle;
  filling_.generation = outcome.answer.generation;
  filling_.complete = outcome.answer.complete;
  filling_.missing = MissingRanges(std::move(outcome.answer.present), DenseBytes(filling_.matrix));
  return outcome.attempt;
}

Attempt Upload::Judge(Attempt attempt) {
  const absl::Status& status = attempt.status;
  if (is_new_ && may_exist_ && absl::IsNotFound(status)) {
    // The server was started anew, or somebody deleted it: this call is to leave it there.
    filling_ = {.matrix = filling_.matrix};
    return {.status = absl::UnavailableError(absl::StrCat(
                "the matrix left the server during its upload: ", std::string(status.message())))};
  }
  if (is_new_ && may_exist_ && absl::IsAlreadyExists(status)) {
    // A server that knows the key would have joined it to what an attempt made.
    return {.status = absl::AlreadyExistsError(absl::StrCat(
                std::string(status.message()),
                " (an earlier attempt of this call may have made it: resume it then)"))};
  }
  may_exist_ = may_exist_ || (!status.ok() && !absl::IsAlreadyExists(status));
  return attempt;
}

void Upload::Forget() {
  may_exist_ = false;
  filling_ = {.matrix = filling_.matrix};
}

void DeleteQuietly(const std::shared_ptr<grpc::Channel>& channel, const std::string& handle) {
  constexpr Nanos kMoment = std::chrono::milliseconds(250);
  if (handle.empty()) return;
  grpc::ClientContext context;
  SetDeadline(DeadlineIn(kMoment), context);
  v1::DeleteMatrixRequest request;
  request.set_handle(handle);
  v1::DeleteMatrixResponse response;
  v1::MatmulService::NewStub(channel)->DeleteMatrix(&context, request, &response);
}

absl::StatusOr<std::string> UploadMatrix(Lanes& connections, int lanes, const MatrixView& matrix,
                                         const UploadOptions& options,
                                         const CallOptions& call_options) {
  TCGEMM_RETURN_IF_ERROR(CheckUpload(matrix));
  const size_t bytes = DenseBytes(matrix);
  const int count = LanesFor(lanes, bytes);
  Upload upload(matrix, options);
  bool one_stream = count == 1 && (!options.name.empty() || bytes <= kMostUnheardBytes);
  const RetryOutcome outcome = CallWithin(call_options, [&](TimePoint deadline) -> Attempt {
    if (!std::exchange(one_stream, false)) return FillOne(connections, count, upload, deadline);
    RangeQueue all({{0, bytes}}, Lanes::kPieceBytes);
    Attempt sent = upload.Open({.channel = connections.first(), .deadline = deadline}, &all);
    if (!sent.status.ok() || upload.filling().complete) return sent;
    return {.status = absl::UnavailableError("the server does not have every range yet")};
  });
  if (outcome.status.ok()) return upload.filling().handle;
  // Nobody else knows its handle.
  if (options.name.empty()) DeleteQuietly(connections.first(), upload.handle());
  return outcome.status;
}

absl::Status ResumeMatrix(Lanes& connections, int lanes, const std::string& handle,
                          const MatrixView& matrix, const CallOptions& options) {
  TCGEMM_RETURN_IF_ERROR(CheckUpload(matrix));
  const int count = LanesFor(lanes, DenseBytes(matrix));
  Upload upload(matrix, handle);
  return CallWithin(
             options,
             [&](TimePoint deadline) { return FillOne(connections, count, upload, deadline); })
      .status;
}

// ---- Down ----

absl::Status DownloadMatrix(Lanes& connections, int lanes, const std::string& handle,
                            Matrix& matrix, const CallOptions& options) {
  Place place(matrix);
  Fetching fetching{.handle = handle,
                    .place = [&place](const v1::MatrixInfo& info) { return place.Take(info); }};
  int count = 1;
  bool known = LanesFor(lanes, SIZE_MAX) == 1;  // then its size does not matter
  if (known) fetching.missing = {{0, 0}};
  return CallWithin(
             options,
             [&](TimePoint deadline) -> Attempt {
               if (!known) {
                 // One byte tells how many there are.
                 char first;
                 size_t bytes = 0;
                 const DownloadOutcome probe = ReceiveRange(
                     {.channel = connections.first(), .deadline = deadline},
                     {.handle = handle, .range = {0, 1}, .place = [&](const v1::MatrixInfo& info) {
                        bytes = static_cast<size_t>(info.bytes());
                        const absl::StatusOr<char*> shaped = place.Take(info);
                        return shaped.ok() ? absl::StatusOr<char*>(&first) : shaped;
                      }});
                 if (!probe.attempt.status.ok()) return probe.attempt;
                 fetching.generation = probe.generation;
                 count = LanesFor(lanes, bytes);
                 fetching.missing = CutEvenly(bytes, count, Lanes::kPieceBytes);
                 known = true;
               }
               return connections.Fetch(fetching, count, deadline);
             })
      .status;
}

}  // namespace tcgemm::client
