// A stream of its own with pinned and device memory, for tests that launch thousands of times: what
// is compared lies in memory that is uploaded once.
#ifndef TCGEMM_TESTS_GPU_GPU_LANE_H_
#define TCGEMM_TESTS_GPU_GPU_LANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "tests/gpu/gpu_launch.h"

namespace tcgemm {

// Not thread-safe. Offsets and sizes in bytes.
class GpuLane {
 public:
  struct Sizes {
    size_t device = 0;
    size_t pinned = 0;
  };
  // The device's errors.
  static absl::StatusOr<GpuLane> Create(Device& device, const Sizes& sizes);

  std::byte* device_memory() const { return memory_.data(); }
  std::byte* pinned() const { return pinned_.data(); }

  // Asynchronous, in order.
  absl::Status Upload(const void* from, void* to, size_t bytes);
  absl::Status Download(const void* from, void* to, size_t bytes);
  absl::Status Launch(const Plan& plan, absl::Span<const GemmProblem> problems);
  // Until all of the above is done.
  absl::Status Finish();

 private:
  Device* device_ = nullptr;
  MemoryBlock memory_;
  MemoryBlock pinned_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> event_;
};

// The plan of exactly this kernel and tile.
Plan PlanOfTile(const KernelTile& kernel_tile, absl::Span<const GemmProblem> problems);

// `bytes` of standard normals in bf16; even.
void FillWithNormals(std::byte* to, size_t bytes, uint64_t seed);

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_GPU_GPU_LANE_H_
