#include "client/shared_region.h"

#include <grpcpp/client_context.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "client/side_socket.h"
#include "tcgemm/v1/matmul.grpc.pb.h"

namespace tcgemm::client {
namespace {

// How long the destructor waits for the server's status; then it cancels the call.
constexpr Nanos kCloseGrace = std::chrono::seconds(1);

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

// The open call. gRPC's threads run its reactions.
class SharedRegion::Hold final
    : public grpc::ClientBidiReactor<v1::HoldRegionRequest, v1::HoldRegionResponse> {
 public:
  Hold(const std::shared_ptr<grpc::Channel>& channel, size_t bytes)
      : stub_(v1::MatmulService::NewStub(channel)) {
    request_.set_bytes(static_cast<int64_t>(bytes));
    stub_->async()->HoldRegion(&context_, this);
    AddHold();  // no OnDone before LetGo
    StartWrite(&request_);
    StartRead(&response_);
    StartCall();
  }
  // The call must have ended.
  ~Hold() override = default;

  void OnReadDone(bool ok) override {
    if (!ok) {
      LetGo(/*say_so=*/false);  // the server has ended the call: OnDone tells how
      return;
    }
    {
      MutexLock lock(&state_->mutex);
      if (state_->opened) return;
      state_->opened = true;
      state_->changed.NotifyAll();
    }
    // A second read fails when the server ends the call: without one, nobody would hear of it.
    StartRead(&ignored_);
  }

  void OnDone(const grpc::Status& status) override {
    // As soon as the state says that it is over, this object may be gone.
    const std::shared_ptr<State> state = state_;
    MutexLock lock(&state->mutex);
    state->ended =
        absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
    state->changed.NotifyAll();
  }

  // Blocks until the server has answered.
  absl::StatusOr<v1::HoldRegionResponse> AwaitOpen(Nanos timeout) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    {
      MutexLock lock(&state_->mutex);
      while (!state_->opened && !state_->ended.has_value()) {
        if (!state_->changed.WaitUntil(&state_->mutex, until)) break;
      }
      if (state_->opened && !state_->ended.has_value()) return response_;
    }
    TCGEMM_RETURN_IF_ERROR(status());
    return absl::DeadlineExceededError("the server did not open the region in time");
  }

  absl::Status status() const {
    MutexLock lock(&state_->mutex);
    if (!state_->ended.has_value()) return absl::OkStatus();
    if (state_->ended->ok()) return absl::UnavailableError("the server ended the region");
    return *state_->ended;
  }

  // Blocks until the call has ended: by the server, or soon by us.
  void End() {
    LetGo(/*say_so=*/true);
    const auto until = std::chrono::steady_clock::now() + kCloseGrace;
    MutexLock lock(&state_->mutex);
    while (!state_->ended.has_value() && state_->changed.WaitUntil(&state_->mutex, until)) {
    }
    if (!state_->ended.has_value()) context_.TryCancel();
    while (!state_->ended.has_value()) state_->changed.Wait(&state_->mutex);
  }

 private:
  // From now on the call may end. Once.
  void LetGo(bool say_so) {
    {
      MutexLock lock(&state_->mutex);
      if (std::exchange(state_->let_go, true)) return;
    }
    if (say_so) StartWritesDone();
    RemoveHold();
  }

  struct State {
    Mutex mutex;
    CondVar changed;
    bool opened ABSL_GUARDED_BY(mutex) = false;
    bool let_go ABSL_GUARDED_BY(mutex) = false;
    std::optional<absl::Status> ended ABSL_GUARDED_BY(mutex);
  };

  const std::unique_ptr<v1::MatmulService::Stub> stub_;
  grpc::ClientContext context_;
  v1::HoldRegionRequest request_;
  v1::HoldRegionResponse response_;
  v1::HoldRegionResponse ignored_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Open(
    const std::shared_ptr<grpc::Channel>& channel, const Options& options) {
  absl::string_view path = options.server;
  if (!absl::ConsumePrefix(&path, "unix:")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory is shared over a unix socket alone: --server unix:/path, not ", options.server));
  }
  if (options.bytes == 0) return absl::InvalidArgumentError("a region of no bytes");
  if (options.timeout <= Nanos(0)) {
    return absl::InvalidArgumentError("Options.timeout is required and must be > 0");
  }
  const TimePoint until = Clock::Real()->Now() + options.timeout;
  auto hold = std::make_unique<Hold>(channel, options.bytes);
  const auto fetch = [&]() -> absl::StatusOr<std::unique_ptr<SharedRegion>> {
    TCGEMM_ASSIGN_OR_RETURN(const v1::HoldRegionResponse held, hold->AwaitOpen(options.timeout));
    if (held.bytes() < 0 || static_cast<size_t>(held.bytes()) < options.bytes) {
      return absl::InternalError(absl::StrCat("the server opened a region of ", held.bytes(),
                                              " bytes, ", options.bytes, " were asked for"));
    }
    const SideSocket socket{.path = absl::StrCat(path, ".regions"),
                            .server_path = held.side_socket()};
    TCGEMM_ASSIGN_OR_RETURN(const int fd,
                            FetchRegionFd(socket, held.token(), until - Clock::Real()->Now()));
    const auto bytes = static_cast<size_t>(held.bytes());
    TCGEMM_ASSIGN_OR_RETURN(std::byte* const data, MapRegionFd(fd, bytes));
    return std::unique_ptr<SharedRegion>(
        new SharedRegion(std::move(hold), held.region(), data, bytes));
  };
  absl::StatusOr<std::unique_ptr<SharedRegion>> region = fetch();
  if (!region.ok()) hold->End();
  return region;
}

SharedRegion::SharedRegion(std::unique_ptr<Hold> hold, std::string name, std::byte* data,
                           size_t bytes)
    : hold_(std::move(hold)), name_(std::move(name)), data_(data), bytes_(bytes) {
  MutexLock lock(&mutex_);
  free_[0] = bytes;
}

SharedRegion::~SharedRegion() {
  hold_->End();
  munmap(data_, bytes_);
}

absl::Status SharedRegion::status() const { return hold_->status(); }

absl::StatusOr<absl::Span<std::byte>> SharedRegion::Allocate(size_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("no bytes to allocate");
  MutexLock lock(&mutex_);
  size_t most = 0;
  for (const auto& [offset, available] : free_) {
    most = std::max(most, available);
    // Compared before it is rounded up, which could overflow; every piece is a multiple.
    if (bytes > available) continue;
    const size_t rounded = RoundUp(bytes, kAlignment);
    const size_t at = offset;
    const size_t left = available - rounded;
    free_.erase(offset);
    if (left > 0) free_[at + rounded] = left;
    taken_[at] = rounded;
    return absl::Span<std::byte>(data_ + at, bytes);
  }
  return absl::ResourceExhaustedError(absl::StrCat("no room for ", bytes, " bytes in a region of ",
                                                   bytes_, ": the largest free piece has ", most));
}

absl::StatusOr<MutableMatrixView> SharedRegion::AllocateMatrix(int64_t rows, int64_t cols,
                                                               DType dtype) {
  const auto size = static_cast<int64_t>(DTypeSize(dtype));
  if (rows < 1 || cols < 1 || cols > static_cast<int64_t>(bytes_) / size / rows) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no ", rows, "x", cols, " matrix fits a region of ", bytes_, " bytes"));
  }
  TCGEMM_ASSIGN_OR_RETURN(const absl::Span<std::byte> room,
                          Allocate(static_cast<size_t>(rows * cols * size)));
  return MutableMatrixView{
      .data = room.data(), .rows = rows, .cols = cols, .ld = cols, .dtype = dtype};
}

void SharedRegion::Free(const void* data) {
  if (data == nullptr) return;
  MutexLock lock(&mutex_);
  const auto taken = taken_.find(OffsetOf(data));
  if (taken == taken_.end()) return;
  size_t offset = taken->first;
  size_t bytes = taken->second;
  taken_.erase(taken);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
    }
  }
  free_[offset] = bytes;
}

size_t SharedRegion::free_bytes() const {
  MutexLock lock(&mutex_);
  size_t sum = 0;
  for (const auto& [offset, bytes] : free_) sum += bytes;
  return sum;
}

bool SharedRegion::Contains(const void* data, size_t bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(data_);
  const auto at = reinterpret_cast<uintptr_t>(data);
  return at >= begin && at - begin <= bytes_ && bytes <= bytes_ - (at - begin);
}

}  // namespace tcgemm::client
