#include "tests/gpu/stand_in_device.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/device_cpu.h"
#include "kernels/device_cuda.h"

namespace tcgemm {
namespace {

// Says that it is a GPU, and hands every launch to the CPU.
class StandInDevice final : public Device {
 public:
  explicit StandInDevice(std::unique_ptr<Device> cpu) : cpu_(std::move(cpu)), info_(cpu_->info()) {
    info_.name = "cuda:0";
    info_.unified_memory = false;
    info_.pitch_alignment = 64;
    limits_.kernels = {KernelId::kTmaMma, KernelId::kCpAsyncMma, KernelId::kSimt};
    limits_.max_problems = 96;
    limits_.compute_capability = 90;
    limits_.multiprocessors = 132;
    limits_.shared_bytes_per_block = 227 << 10;
    limits_.shared_bytes_per_multiprocessor = 228 << 10;
  }

  const DeviceInfo& info() const override { return info_; }
  const PlanLimits& plan_limits() const override { return limits_; }
  bool healthy() const override { return true; }
  absl::StatusOr<MemoryBlock> AllocatePinned(size_t bytes) override {
    return cpu_->AllocatePinned(bytes);
  }
  absl::StatusOr<MemoryBlock> AllocateDevice(size_t bytes) override {
    return cpu_->AllocateDevice(bytes);
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override { return cpu_->CreateStream(); }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override { return cpu_->CreateEvent(); }
  absl::Status CopyIn(Stream& stream, const Copy2d& copy) override {
    return cpu_->CopyIn(stream, copy);
  }
  absl::Status CopyOut(Stream& stream, const Copy2d& copy) override {
    return cpu_->CopyOut(stream, copy);
  }
  absl::Status Launch(Stream& stream, const Plan&,
                      absl::Span<const GemmProblem> problems) override {
    TCGEMM_ASSIGN_OR_RETURN(const Plan plan, ChoosePlan(cpu_->plan_limits(), problems));
    return cpu_->Launch(stream, plan, problems);
  }
  absl::Status Record(Stream& stream, Event& event) override { return cpu_->Record(stream, event); }
  absl::Status Wait(Event& event, Nanos limit) override { return cpu_->Wait(event, limit); }
  absl::StatusOr<Nanos> Elapsed(Event& from, Event& to) override { return cpu_->Elapsed(from, to); }

 private:
  const std::unique_ptr<Device> cpu_;
  DeviceInfo info_;
  PlanLimits limits_;
};

}  // namespace

bool IsStandIn() {
  const char* value = std::getenv("TCGEMM_GPU_TEST_STAND_IN");
  return value != nullptr && std::string(value) == "1";
}

absl::StatusOr<std::unique_ptr<Device>> CreateDeviceUnderTest() {
  if (!IsStandIn()) return CreateCudaDevice(0);
  TCGEMM_ASSIGN_OR_RETURN(std::unique_ptr<Device> cpu,
                          CreateCpuDevice(CpuBackend::kPlain, std::make_unique<PoolRunner>(2)));
  return std::make_unique<StandInDevice>(std::move(cpu));
}

}  // namespace tcgemm
