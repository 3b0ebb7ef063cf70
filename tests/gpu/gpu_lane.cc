#include "tests/gpu/gpu_lane.h"

#include <chrono>
#include <cstring>

#include "base/status_macros.h"

namespace tcgemm {

absl::StatusOr<GpuLane> GpuLane::Create(Device& device, const Sizes& sizes) {
  GpuLane lane;
  lane.device_ = &device;
  TCGEMM_ASSIGN_OR_RETURN(lane.memory_, device.AllocateDevice(sizes.device));
  TCGEMM_ASSIGN_OR_RETURN(lane.pinned_, device.AllocatePinned(sizes.pinned));
  TCGEMM_ASSIGN_OR_RETURN(lane.stream_, device.CreateStream());
  TCGEMM_ASSIGN_OR_RETURN(lane.event_, device.CreateEvent());
  return lane;
}

absl::Status GpuLane::Upload(const void* from, void* to, size_t bytes) {
  return device_->CopyIn(*stream_,
                         {.destination = to, .source = from, .row_bytes = bytes, .rows = 1});
}

absl::Status GpuLane::Download(const void* from, void* to, size_t bytes) {
  return device_->CopyOut(*stream_,
                          {.destination = to, .source = from, .row_bytes = bytes, .rows = 1});
}

absl::Status GpuLane::Launch(const Plan& plan, absl::Span<const GemmProblem> problems) {
  return device_->Launch(*stream_, plan, problems);
}

absl::Status GpuLane::Finish() {
  TCGEMM_RETURN_IF_ERROR(device_->Record(*stream_, *event_));
  return device_->Wait(*event_, std::chrono::seconds(60));
}

Plan PlanOfTile(const KernelTile& kernel_tile, absl::Span<const GemmProblem> problems) {
  Plan plan = {.kernel = kernel_tile.kernel,
               .problems = static_cast<int>(problems.size()),
               .tile = kernel_tile.tile};
  for (const GemmProblem& problem : problems) {
    plan.tiles += static_cast<int>(TileCount(problem.shape(), plan.tile));
  }
  return plan;
}

void FillWithNormals(std::byte* to, size_t bytes, uint64_t seed) {
  Matrix normals(1, static_cast<int64_t>(bytes / 2), DType::kBf16);
  FillNormal(normals, seed);
  std::memcpy(to, normals.data<std::byte>(), bytes / 2 * 2);
}

}  // namespace tcgemm
