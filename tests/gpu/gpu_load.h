// Others that use the GPU at the same time: a second stream, a second process.
#ifndef TCGEMM_TESTS_GPU_GPU_LOAD_H_
#define TCGEMM_TESTS_GPU_GPU_LOAD_H_

#include <sys/types.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "tests/gpu/gpu_lane.h"

namespace tcgemm {

// Products of 2048³ on a stream of its own; some 30 µs of the whole chip each on an H200.
class GpuLoad {
 public:
  static absl::StatusOr<GpuLoad> Create(Device& device);
  absl::Status Enqueue(int products);
  absl::Status Finish() { return lane_.Finish(); }

 private:
  GpuLane lane_;
  GemmProblem problem_;
  Plan plan_;
};

// This program once more, loading the GPU until it is stopped. Killed with its handle at the
// latest.
class LoadingProcess {
 public:
  // When it has begun. UNAVAILABLE when it cannot be started or ends before.
  static absl::StatusOr<LoadingProcess> Start();
  LoadingProcess(LoadingProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), input_(std::exchange(other.input_, -1)) {}
  LoadingProcess(const LoadingProcess&) = delete;
  ~LoadingProcess();
  // Its exit code. INTERNAL when it died of a signal.
  absl::StatusOr<int> Stop();

 private:
  LoadingProcess(pid_t pid, int input) : pid_(pid), input_(input) {}

  pid_t pid_ = -1;
  int input_ = -1;  // it ends when this is closed
};

}  // namespace tcgemm

#endif  // TCGEMM_TESTS_GPU_GPU_LOAD_H_
