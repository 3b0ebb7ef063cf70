#include "kernels/device_cpu.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <new>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "kernels/cpu_gemm.h"
#include "kernels/cpu_pack.h"
#include "kernels/cpu_plain.h"
#include "kernels/host_memory.h"
#ifdef TCGEMM_ONEDNN
#include "kernels/cpu_onednn.h"
#endif

namespace tcgemm {
namespace {

// "AMD EPYC 9554 64-Core Processor"; "unknown CPU" where the kernel does not say.
std::string CpuModelName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown CPU";
}

class CpuStream final : public Stream {};

class CpuEvent final : public Event {
 public:
  // One thread may record what another waits for.
  std::atomic<int64_t> reached_ns{kNotRecorded};
  static constexpr int64_t kNotRecorded = -1;
};

absl::Status Copy(const Copy2d& copy) {
  const bool dense =
      copy.destination_pitch == copy.row_bytes && copy.source_pitch == copy.row_bytes;
  const int64_t pieces = dense ? std::min<int64_t>(copy.rows, 1) : copy.rows;
  const size_t bytes = dense ? copy.row_bytes * static_cast<size_t>(copy.rows) : copy.row_bytes;
  if (bytes == 0) return absl::OkStatus();  // the pointers may be null then
  for (int64_t i = 0; i < pieces; ++i) {
    std::memcpy(static_cast<std::byte*>(copy.destination) + i * copy.destination_pitch,
                static_cast<const std::byte*>(copy.source) + i * copy.source_pitch, bytes);
  }
  return absl::OkStatus();
}

class CpuDevice final : public Device {
 public:
  struct Kernel {
    KernelId id;
    CpuInnerKernel* inner;
  };
  struct Kernels {
    std::string backend;
    std::string instructions;
    std::string library;  // with its version; may be empty
    std::vector<std::unique_ptr<CpuInnerKernel>> owned;
    std::vector<Kernel> best_first;
  };

  CpuDevice(Kernels kernels, std::unique_ptr<ParallelRunner> runner)
      : kernels_(std::move(kernels)), runner_(std::move(runner)), gemm_(runner_.get()) {
    info_.name = "cpu";
    info_.backend = kernels_.backend;
    info_.description =
        absl::StrCat(CpuModelName(), ", ", kernels_.instructions, ", ", runner_->width(),
                     runner_->width() == 1 ? " thread" : " threads",
                     kernels_.library.empty() ? "" : ", ", kernels_.library);
    info_.unified_memory = true;
    for (const Kernel& kernel : kernels_.best_first) limits_.kernels.push_back(kernel.id);
  }

  const DeviceInfo& info() const override { return info_; }
  const PlanLimits& plan_limits() const override { return limits_; }
  bool healthy() const override { return true; }

  absl::StatusOr<MemoryBlock> AllocatePinned(size_t bytes) override {
    return AllocateHostMemory(bytes);
  }
  absl::StatusOr<MemoryBlock> AllocateDevice(size_t bytes) override {
    return AllocateHostMemory(bytes);
  }
  absl::StatusOr<MemoryBlock> AllocateForLater(size_t bytes) override {
    return AllocateHostMemory(bytes, Pages::kFirstUse);
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return std::make_unique<CpuStream>();
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return std::make_unique<CpuEvent>();
  }

  absl::Status CopyIn(Stream&, const Copy2d& copy) override { return Copy(copy); }
  absl::Status CopyOut(Stream&, const Copy2d& copy) override { return Copy(copy); }

  absl::Status Launch(Stream&, const Plan& plan, absl::Span<const GemmProblem> problems) override {
    if (plan.panel_rows != kCpuPanelRows || plan.problems != static_cast<int>(problems.size())) {
      return absl::InvalidArgumentError(absl::StrCat("plan ", plan.ToString(), " is not one of ",
                                                     problems.size(), " problems on this device"));
    }
    for (const Kernel& kernel : kernels_.best_first) {
      if (kernel.id == plan.kernel) return gemm_.Run(*kernel.inner, problems);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("this device has no kernel ", std::string(KernelName(plan.kernel))));
  }

  absl::Status Record(Stream&, Event& event) override {
    static_cast<CpuEvent&>(event).reached_ns.store(Clock::Real()->Now().time_since_epoch() /
                                                   Nanos(1));
    return absl::OkStatus();
  }
  absl::Status Wait(Event&, Nanos) override { return absl::OkStatus(); }
  absl::StatusOr<Nanos> Elapsed(Event& from, Event& to) override {
    const int64_t from_ns = static_cast<CpuEvent&>(from).reached_ns.load();
    const int64_t to_ns = static_cast<CpuEvent&>(to).reached_ns.load();
    if (from_ns == CpuEvent::kNotRecorded || to_ns == CpuEvent::kNotRecorded) {
      return absl::InternalError("Elapsed: an event was never recorded");
    }
    return Nanos(to_ns - from_ns);
  }

  // Sets info().flops_per_second and warms caches, code and threads.
  absl::Status MeasureRate();

 private:
  Kernels kernels_;
  std::unique_ptr<ParallelRunner> runner_;
  CpuGemm gemm_;
  DeviceInfo info_;
  PlanLimits limits_;
};

absl::Status CpuDevice::MeasureRate() {
  constexpr Nanos kLongEnough = std::chrono::milliseconds(10);
  // Enough rows that no thread starves.
  const int64_t m = int64_t{kCpuPanelRows} * 32 * runner_->width();
  constexpr int64_t kSide = 256;
  TCGEMM_ASSIGN_OR_RETURN(MemoryBlock memory,
                          AllocateHostMemory((m * kSide + kSide * kSide) * 2 + m * kSide * 4));
  uint16_t* operands = reinterpret_cast<uint16_t*>(memory.data());
  std::fill_n(operands, m * kSide + kSide * kSide, uint16_t{0x3f80});  // ones
  GemmProblem problem;
  problem.a = {operands, m, kSide, kSide, DType::kBf16, false};
  problem.b = {operands + m * kSide, kSide, kSide, kSide, DType::kBf16, false};
  problem.d = {operands + m * kSide + kSide * kSide, m, kSide, kSide, DType::kFp32, false};

  const TimePoint start = Clock::Real()->Now();
  TimePoint before = start;
  while (before - start < kLongEnough) {
    TCGEMM_RETURN_IF_ERROR(gemm_.Run(*kernels_.best_first[0].inner, {&problem, 1}));
    const TimePoint after = Clock::Real()->Now();
    const double seconds = std::chrono::duration<double>(after - before).count();
    // The best of several: another process may hold the cores for a while.
    info_.flops_per_second =
        std::max(info_.flops_per_second, problem.shape().flops() / std::max(seconds, 1e-9));
    before = after;
  }
  return absl::OkStatus();
}

CpuDevice::Kernels CreatePlain(int workers) {
  CpuDevice::Kernels kernels;
  kernels.backend = "plain";
  kernels.instructions = CpuVectorsName(DetectCpuVectors());
  kernels.owned.push_back(CreatePlainKernel(workers));
  kernels.best_first = {{KernelId::kCpuPlain, kernels.owned[0].get()}};
  return kernels;
}

absl::StatusOr<CpuDevice::Kernels> CreateOnednn([[maybe_unused]] int workers) {
#ifdef TCGEMM_ONEDNN
  TCGEMM_ASSIGN_OR_RETURN(OnednnKernels onednn, CreateOnednnKernels(workers));
  CpuDevice::Kernels kernels;
  kernels.backend = "onednn";
  kernels.instructions = onednn.isa;
  kernels.library = absl::StrCat("oneDNN ", onednn.version);
  if (onednn.bf16 != nullptr) {
    kernels.best_first.push_back({KernelId::kCpuOnednnBf16, onednn.bf16.get()});
  }
  kernels.best_first.push_back({KernelId::kCpuOnednnFp32, onednn.fp32.get()});
  kernels.owned.push_back(std::move(onednn.fp32));
  kernels.owned.push_back(std::move(onednn.bf16));
  return kernels;
#else
  return absl::UnimplementedError("this build has no oneDNN");
#endif
}

absl::StatusOr<CpuDevice::Kernels> CreateKernels(CpuBackend backend, int workers) {
  if (backend == CpuBackend::kPlain) return CreatePlain(workers);
  absl::StatusOr<CpuDevice::Kernels> kernels = CreateOnednn(workers);
  // Not built in, or not for this CPU. info().backend says what it became.
  if (backend == CpuBackend::kAuto && absl::IsUnimplemented(kernels.status())) {
    return CreatePlain(workers);
  }
  return kernels;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(CpuBackend backend,
                                                        std::unique_ptr<ParallelRunner> runner) {
  try {
    TCGEMM_ASSIGN_OR_RETURN(CpuDevice::Kernels kernels, CreateKernels(backend, runner->width()));
    auto device = std::make_unique<CpuDevice>(std::move(kernels), std::move(runner));
    TCGEMM_RETURN_IF_ERROR(device->MeasureRate());
    return device;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory for the CPU device's scratch");
  }
}

}  // namespace tcgemm
