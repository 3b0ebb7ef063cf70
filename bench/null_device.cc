#include "bench/null_device.h"

#include "kernels/host_memory.h"

namespace tcgemm {
namespace {

class NullDevice final : public Device {
 public:
  NullDevice() {
    info_.name = "cpu";
    info_.description = "computes nothing";
    info_.backend = "null";
    info_.unified_memory = true;
    info_.flops_per_second = 1e15;
    limits_.kernels = {KernelId::kCpuPlain};
  }

  const DeviceInfo& info() const override { return info_; }
  const PlanLimits& plan_limits() const override { return limits_; }
  bool healthy() const override { return true; }

  absl::StatusOr<MemoryBlock> AllocatePinned(size_t bytes) override {
    return AllocateHostMemory(bytes);
  }
  absl::StatusOr<MemoryBlock> AllocateDevice(size_t bytes) override {
    return AllocatePinned(bytes);
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return std::make_unique<Stream>();
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return std::make_unique<Event>();
  }

  absl::Status CopyIn(Stream&, const Copy2d&) override { return absl::OkStatus(); }
  absl::Status CopyOut(Stream&, const Copy2d&) override { return absl::OkStatus(); }
  absl::Status Launch(Stream&, const Plan&, absl::Span<const GemmProblem>) override {
    return absl::OkStatus();
  }
  absl::Status Record(Stream&, Event&) override { return absl::OkStatus(); }
  absl::Status Wait(Event&, Nanos) override { return absl::OkStatus(); }
  absl::StatusOr<Nanos> Elapsed(Event&, Event&) override { return Nanos(1); }

 private:
  DeviceInfo info_;
  PlanLimits limits_;
};

}  // namespace

std::unique_ptr<Device> CreateNullDevice() { return std::make_unique<NullDevice>(); }

}  // namespace tcgemm
