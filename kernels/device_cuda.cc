#include "kernels/device_cuda.h"

#include <cuda_runtime_api.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda_info.h"
#include "kernels/cuda_launch.h"
#include "kernels/cuda_memory.h"
#include "kernels/cuda_status.h"
#include "kernels/launch.h"
#include "kernels/poll.h"
#include "kernels/split_k.h"
#include "kernels/split_reduce.h"
#include "kernels/tensor_map_encode.h"

namespace tcgemm {
namespace {

class CudaStream final : public Stream {
 public:
  CudaStream(cudaStream_t handle, int ordinal, TensorMapEncoder encoder)
      : handle_(handle), ordinal_(ordinal), builder_(std::move(encoder)) {}
  ~CudaStream() override {
    if (UseCudaDevice(ordinal_).ok()) (void)cudaStreamDestroy(handle_);
  }
  cudaStream_t handle() const { return handle_; }
  LaunchBuilder& builder() { return builder_; }

 private:
  const cudaStream_t handle_;
  const int ordinal_;
  LaunchBuilder builder_;
};

class CudaEvent final : public Event {
 public:
  CudaEvent(cudaEvent_t handle, int ordinal) : handle_(handle), ordinal_(ordinal) {}
  ~CudaEvent() override {
    if (UseCudaDevice(ordinal_).ok()) (void)cudaEventDestroy(handle_);
  }
  cudaEvent_t handle() const { return handle_; }

 private:
  const cudaEvent_t handle_;
  const int ordinal_;
};

cudaStream_t HandleOf(Stream& stream) { return static_cast<CudaStream&>(stream).handle(); }
cudaEvent_t HandleOf(Event& event) { return static_cast<CudaEvent&>(event).handle(); }

void SleepFor(Nanos duration) {
  // The default slack of 50 µs would make every short sleep late by as much.
  thread_local const int slack_set = prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
  (void)slack_set;
  const timespec time = {.tv_sec = static_cast<time_t>(duration.count() / 1'000'000'000),
                         .tv_nsec = static_cast<long>(duration.count() % 1'000'000'000)};
  nanosleep(&time, nullptr);  // an early end through a signal costs one more question
}

cudaError_t LaunchKernel(KernelId kernel, const LaunchArguments& arguments, cudaStream_t stream) {
  switch (kernel) {
    case KernelId::kTmaWgmma:
      return LaunchTmaWgmma(arguments, stream);
    case KernelId::kTmaMma:
      return LaunchTmaMma(arguments, stream);
    case KernelId::kCpAsyncMma:
      return LaunchCpAsyncMma(arguments, stream);
    case KernelId::kSimt:
      return LaunchSimt(arguments, stream);
    case KernelId::kCpuPlain:
    case KernelId::kCpuOnednnBf16:
    case KernelId::kCpuOnednnFp32:
      break;
  }
  return cudaErrorInvalidValue;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, const CudaDeviceOptions& options, const CudaInfo& cuda)
      : ordinal_(ordinal), options_(options), cuda_(cuda), limits_(PlanLimitsOf(cuda)) {
    info_.name = absl::StrCat("cuda:", ordinal);
    info_.description = cuda.Describe();
    info_.backend = "cuda";
    info_.reads_pinned = cuda.reads_pinned;
    info_.pitch_alignment = 64;
    info_.numa_node = cuda.numa_node;
    info_.pci_id = cuda.pci_id;
  }

  // Context, kernels, encoder, rate: once, before anything else.
  absl::Status Open();

  const DeviceInfo& info() const override { return info_; }
  const PlanLimits& plan_limits() const override { return limits_; }
  bool healthy() const override { return health_.healthy(); }

  absl::StatusOr<MemoryBlock> AllocatePinned(size_t bytes) override {
    TCGEMM_RETURN_IF_ERROR(UseCudaDevice(ordinal_));
    return AllocatePinnedMemory(bytes, options_.near_numa_node ? cuda_.numa_node : -1);
  }
  absl::StatusOr<MemoryBlock> AllocateDevice(size_t bytes) override {
    return AllocateGpuMemory(bytes, ordinal_);
  }
  absl::Status RegisterHost(void* data, size_t bytes) override;
  absl::Status UnregisterHost(void* data) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override;

  absl::Status CopyIn(Stream& stream, const Copy2d& copy) override {
    return Copy(stream, copy, cudaMemcpyHostToDevice);
  }
  absl::Status CopyOut(Stream& stream, const Copy2d& copy) override {
    return Copy(stream, copy, cudaMemcpyDeviceToHost);
  }
  absl::Status Launch(Stream& stream, const Plan& plan,
                      absl::Span<const GemmProblem> problems) override;
  absl::Status Record(Stream& stream, Event& event) override;
  absl::Status WaitFor(Stream& stream, Event& event) override;
  absl::Status Wait(Event& event, Nanos limit) override;
  absl::StatusOr<Nanos> Elapsed(Event& from, Event& to) override;

  TensorMapCounts tensor_map_counts() const override {
    return {.hits = map_hits_.load(std::memory_order_relaxed),
            .misses = map_misses_.load(std::memory_order_relaxed)};
  }

 private:
  absl::Status Copy(Stream& stream, const Copy2d& copy, cudaMemcpyKind kind);
  absl::Status LaunchChecked(Stream& stream, const Plan& plan,
                             absl::Span<const GemmProblem> problems);
  absl::Status MeasureRate();
  absl::StatusOr<Nanos> TimeOnce(Stream& stream, const GemmProblem& problem);

  const int ordinal_;
  const CudaDeviceOptions options_;
  const CudaInfo cuda_;
  const PlanLimits limits_;
  DeviceInfo info_;
  TensorMapEncoder encoder_;
  CudaHealth health_;
  std::atomic<int64_t> map_hits_{0};
  std::atomic<int64_t> map_misses_{0};
};

absl::Status CudaDevice::Open() {
  TCGEMM_RETURN_IF_ERROR(UseCudaDevice(ordinal_));
  TCGEMM_CUDA_RETURN_IF_ERROR(health_, PrepareSimt());
  TCGEMM_CUDA_RETURN_IF_ERROR(health_, PrepareCpAsyncMma());
  if (cuda_.compute_capability >= 90) {
    TCGEMM_CUDA_RETURN_IF_ERROR(health_, PrepareTmaMma());
    TCGEMM_CUDA_RETURN_IF_ERROR(health_, PrepareSplitReduce());
    if (cuda_.compute_capability == 90) {
      TCGEMM_CUDA_RETURN_IF_ERROR(health_, PrepareTmaWgmma());
    }
    TCGEMM_ASSIGN_OR_RETURN(encoder_, FindTensorMapEncoder());
  }
  return MeasureRate();
}

absl::Status CudaDevice::RegisterHost(void* data, size_t bytes) {
  TCGEMM_RETURN_IF_ERROR(UseCudaDevice(ordinal_));
  // Portable: any context of this process may copy. Not mapped: kernels never read it where it is.
  return TCGEMM_CUDA_CHECK(health_, cudaHostRegister(data, bytes, cudaHostRegisterPortable));
}

absl::Status CudaDevice::UnregisterHost(void* data) {
  TCGEMM_RETURN_IF_ERROR(UseCudaDevice(ordinal_));
  return TCGEMM_CUDA_CHECK(health_, cudaHostUnregister(data));
}

absl::StatusOr<std::unique_ptr<Stream>> CudaDevice::CreateStream() {
  TCGEMM_RETURN_IF_ERROR(UseCudaDevice(ordinal_));
  cudaStream_t handle = nullptr;
  TCGEMM_CUDA_RETURN_IF_ERROR(health_, cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking));
  return std::make_unique<CudaStream>(handle, ordinal_, encoder_);
}

absl::StatusOr<std::unique_ptr<Event>> CudaDevice::CreateEvent() {
  TCGEMM_RETURN_IF_ERROR(UseCudaDevice(ordinal_));
  cudaEvent_t handle = nullptr;
  TCGEMM_CUDA_RETURN_IF_ERROR(health_, cudaEventCreateWithFlags(&handle, cudaEventDefault));
  return std::make_unique<CudaEvent>(handle, ordinal_);
}

absl::Status CudaDevice::Copy(Stream& stream, const Copy2d& copy, cudaMemcpyKind kind) {
  if (copy.rows <= 0 || copy.row_bytes == 0) return absl::OkStatus();
  TCGEMM_RETURN_IF_ERROR(UseCudaDevice(ordinal_));
  const auto rows = static_cast<size_t>(copy.rows);
  const cudaStream_t handle = HandleOf(stream);
  if (rows == 1 || copy.destination_pitch == copy.source_pitch) {
    // One row needs no pitch; equal pitches make it one span, gaps included.
    const size_t bytes = (rows - 1) * copy.source_pitch + copy.row_bytes;
    return TCGEMM_CUDA_CHECK(health_,
                             cudaMemcpyAsync(copy.destination, copy.source, bytes, kind, handle));
  }
  if (std::max(copy.destination_pitch, copy.source_pitch) <= cuda_.max_copy_pitch) {
    return TCGEMM_CUDA_CHECK(
        health_, cudaMemcpy2DAsync(copy.destination, copy.destination_pitch, copy.source,
                                   copy.source_pitch, copy.row_bytes, rows, kind, handle));
  }
  // Rows of 2 GiB and more: there cannot be many.
  for (size_t i = 0; i < rows; ++i) {
    std::byte* to = static_cast<std::byte*>(copy.destination) + i * copy.destination_pitch;
    const std::byte* from = static_cast<const std::byte*>(copy.source) + i * copy.source_pitch;
    TCGEMM_CUDA_RETURN_IF_ERROR(health_, cudaMemcpyAsync(to, from, copy.row_bytes, kind, handle));
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::Launch(Stream& stream, const Plan& plan,
                                absl::Span<const GemmProblem> problems) {
  TCGEMM_RETURN_IF_ERROR(CheckLaunch(limits_, plan, problems));
  if (plan.tiles == 0) return absl::OkStatus();  // a grid of 0 blocks is an error to CUDA
  TCGEMM_RETURN_IF_ERROR(UseCudaDevice(ordinal_));
  if (plan.splits == 1) return LaunchChecked(stream, plan, problems);
  const SplitParts parts(problems[0], plan.splits, problems[0].workspace.data);
  TCGEMM_RETURN_IF_ERROR(
      LaunchChecked(stream, PlanOfParts(plan, parts.problems()), parts.problems()));
  return TCGEMM_CUDA_CHECK(
      health_, LaunchSplitReduce(ReduceArgumentsOf(plan, problems[0]), HandleOf(stream)));
}

absl::Status CudaDevice::LaunchChecked(Stream& stream, const Plan& plan,
                                       absl::Span<const GemmProblem> problems) {
  LaunchBuilder& builder = static_cast<CudaStream&>(stream).builder();
  const TensorMapCounts before = builder.counts();
  const absl::StatusOr<LaunchArguments> arguments = builder.Build(limits_, plan, problems);
  map_hits_.fetch_add(builder.counts().hits - before.hits, std::memory_order_relaxed);
  map_misses_.fetch_add(builder.counts().misses - before.misses, std::memory_order_relaxed);
  TCGEMM_RETURN_IF_ERROR(arguments.status());
  const cudaError_t error = LaunchKernel(plan.kernel, *arguments, HandleOf(stream));
  if (error == cudaSuccess) [[likely]] {
    return absl::OkStatus();
  }
  const std::string expression = absl::StrCat("launch of ", plan.ToString());
  return health_.Check(error, {expression.c_str(), __FILE__, __LINE__});
}

absl::Status CudaDevice::Record(Stream& stream, Event& event) {
  TCGEMM_RETURN_IF_ERROR(UseCudaDevice(ordinal_));
  return TCGEMM_CUDA_CHECK(health_, cudaEventRecord(HandleOf(event), HandleOf(stream)));
}

absl::Status CudaDevice::WaitFor(Stream& stream, Event& event) {
  TCGEMM_RETURN_IF_ERROR(UseCudaDevice(ordinal_));
  return TCGEMM_CUDA_CHECK(health_, cudaStreamWaitEvent(HandleOf(stream), HandleOf(event), 0));
}

absl::Status CudaDevice::Wait(Event& event, Nanos limit) {
  TCGEMM_RETURN_IF_ERROR(UseCudaDevice(ordinal_));
  const auto reached = [&]() -> absl::StatusOr<bool> {
    const cudaError_t error = cudaEventQuery(HandleOf(event));
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();  // not an error, though CUDA keeps it as the last one
      return false;
    }
    TCGEMM_RETURN_IF_ERROR(health_.Check(error, {"cudaEventQuery(event)", __FILE__, __LINE__}));
    return true;
  };
  return PollUntil(*Clock::Real(), limit, reached, SleepFor);
}

absl::StatusOr<Nanos> CudaDevice::Elapsed(Event& from, Event& to) {
  TCGEMM_RETURN_IF_ERROR(UseCudaDevice(ordinal_));
  float milliseconds = 0;
  TCGEMM_CUDA_RETURN_IF_ERROR(health_,
                              cudaEventElapsedTime(&milliseconds, HandleOf(from), HandleOf(to)));
  return Nanos(static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6));
}

absl::StatusOr<Nanos> CudaDevice::TimeOnce(Stream& stream, const GemmProblem& problem) {
  constexpr Nanos kLimit = std::chrono::seconds(10);
  TCGEMM_ASSIGN_OR_RETURN(const Plan plan, ChoosePlan(limits_, {&problem, 1}));
  TCGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<Event> from, CreateEvent());
  TCGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<Event> to, CreateEvent());
  TCGEMM_RETURN_IF_ERROR(Record(stream, *from));
  TCGEMM_RETURN_IF_ERROR(Launch(stream, plan, {&problem, 1}));
  TCGEMM_RETURN_IF_ERROR(Record(stream, *to));
  TCGEMM_RETURN_IF_ERROR(Wait(*to, kLimit));
  return Elapsed(*from, *to);
}

absl::Status CudaDevice::MeasureRate() {
  constexpr int64_t kSide = 4096;
  constexpr size_t kBytes = size_t{kSide} * kSide * 2;
  constexpr int kRounds = 4;  // the first warms up; the best of the others counts
  TCGEMM_ASSIGN_OR_RETURN(const MemoryBlock memory, AllocateDevice(3 * kBytes));
  TCGEMM_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, CreateStream());
  // Not zeros, which run faster than data: 0x3f3f is 0.75.
  TCGEMM_CUDA_RETURN_IF_ERROR(health_,
                              cudaMemsetAsync(memory.data(), 0x3f, 2 * kBytes, HandleOf(*stream)));
  GemmProblem problem;
  problem.a = {memory.data(), kSide, kSide, kSide, DType::kBf16, false};
  problem.b = {memory.data() + kBytes, kSide, kSide, kSide, DType::kBf16, true};
  problem.d = {memory.data() + 2 * kBytes, kSide, kSide, kSide, DType::kBf16, false};
  for (int i = 0; i < kRounds; ++i) {
    TCGEMM_ASSIGN_OR_RETURN(const Nanos time, TimeOnce(*stream, problem));
    const double seconds = std::max(std::chrono::duration<double>(time).count(), 1e-9);
    if (i == 0) continue;
    info_.flops_per_second = std::max(info_.flops_per_second, problem.shape().flops() / seconds);
  }
  // The engine does not count what was launched before it was there.
  map_hits_ = 0;
  map_misses_ = 0;
  return absl::OkStatus();
}

}  // namespace

absl::Status CudaDeviceUsable(int ordinal) { return ReadCudaInfo(ordinal).status(); }

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(int ordinal,
                                                         const CudaDeviceOptions& options) {
  TCGEMM_ASSIGN_OR_RETURN(const CudaInfo info, ReadCudaInfo(ordinal));
  auto device = std::make_unique<CudaDevice>(ordinal, options, info);
  TCGEMM_RETURN_IF_ERROR(device->Open());
  return device;
}

}  // namespace tcgemm
