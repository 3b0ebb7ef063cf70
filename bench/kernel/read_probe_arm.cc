#include <cuda_runtime_api.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/kernel/arm.h"
#include "bench/kernel/read_probe.h"

namespace tcgemm::bench {
namespace {

class ReadProbeArm final : public Arm {
 public:
  explicit ReadProbeArm(int blocks) : blocks_(blocks) {}
  ~ReadProbeArm() override {
    if (from_ != nullptr) cudaEventDestroy(from_);
    if (to_ != nullptr) cudaEventDestroy(to_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (sums_ != nullptr) cudaFree(sums_);
  }

  absl::Status Init(const OperandSets& sets) {
    TCGEMM_RETURN_IF_ERROR(CudaStatus(PrepareReadProbe(), "the read probe"));
    void* memory = nullptr;
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&memory, 2 * sizeof(uint32_t)), "cudaMalloc"));
    sums_ = static_cast<uint32_t*>(memory);
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&from_), "cudaEventCreate"));
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&to_), "cudaEventCreate"));
    TCGEMM_RETURN_IF_ERROR(
        CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate"));
    return Check(sets);
  }

  ArmKind kind() const override { return ArmKind::kReadProbe; }
  const std::string& name() const override { return name_; }
  std::string detail() const override {
    return absl::StrCat("cp.async.bulk of B, ", blocks_, " blocks, 12 x 16 KiB in flight in each");
  }

  absl::StatusOr<double> Burst(const OperandSets& sets, int first_set, int launches) override {
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(from_, stream_), "cudaEventRecord"));
    for (int i = 0; i < launches; ++i) {
      TCGEMM_RETURN_IF_ERROR(
          CudaStatus(LaunchReadProbe(ProbeOf(sets.problem(first_set + i), sums_), blocks_, stream_),
                     "the read probe"));
    }
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(to_, stream_), "cudaEventRecord"));
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaEventSynchronize(to_), "a burst of the read probe"));
    float milliseconds = 0;
    TCGEMM_RETURN_IF_ERROR(
        CudaStatus(cudaEventElapsedTime(&milliseconds, from_, to_), "cudaEventElapsedTime"));
    return milliseconds / 1e3;
  }

 private:
  static ReadProbe ProbeOf(const GemmProblem& problem, uint32_t* sum) {
    return {.data = problem.b.data, .bytes = 2 * problem.b.rows * problem.b.ld, .sum = sum};
  }

  absl::Status Check(const OperandSets& sets) {
    const GemmProblem& problem = sets.problem(0);
    uint32_t sums[2] = {1, 2};
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaMemset(sums_, 0, sizeof(sums)), "cudaMemset"));
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "cudaMemset"));
    TCGEMM_RETURN_IF_ERROR(
        CudaStatus(LaunchReadProbe(ProbeOf(problem, sums_), blocks_, stream_), "the read probe"));
    TCGEMM_RETURN_IF_ERROR(
        CudaStatus(LaunchExpectedSum(ProbeOf(problem, sums_ + 1), stream_), "its sum"));
    TCGEMM_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream_), "the read probe"));
    TCGEMM_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(sums, sums_, sizeof(sums), cudaMemcpyDeviceToHost), "cudaMemcpy"));
    if (sums[0] == sums[1]) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("the read probe read ", sums[0], ", there lies ", sums[1]));
  }

  const std::string name_ = "read_probe";
  const int blocks_;
  uint32_t* sums_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t from_ = nullptr;
  cudaEvent_t to_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Arm>> CreateReadProbeArm(Device& device, const OperandSets& sets) {
  auto arm = std::make_unique<ReadProbeArm>(device.plan_limits().multiprocessors);
  TCGEMM_RETURN_IF_ERROR(arm->Init(sets));
  return arm;
}

}  // namespace tcgemm::bench
