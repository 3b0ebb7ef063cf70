#include "kernels/cuda_info.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/cuda_status.h"
#include "kernels/launch.h"

namespace tcgemm {
namespace {

std::string VersionText(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

absl::Status Unusable(const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat("no usable GPU: ", why));
}

// "" or " (CUDA_VISIBLE_DEVICES is …)": it hides GPUs, and people forget it.
std::string VisibleDevicesNote() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? "" : absl::StrCat(" (CUDA_VISIBLE_DEVICES is \"", visible, "\")");
}

absl::StatusOr<int> CountDevices() {
  int driver = 0;  // stays 0 when there is none
  int runtime = 0;
  TCGEMM_RETURN_IF_ERROR(TCGEMM_CUDA_STATUS(cudaDriverGetVersion(&driver)));
  TCGEMM_RETURN_IF_ERROR(TCGEMM_CUDA_STATUS(cudaRuntimeGetVersion(&runtime)));
  if (driver == 0) return Unusable("no NVIDIA driver on this machine (libcuda.so.1 not found)");
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();
    return Unusable(absl::StrCat("the driver speaks CUDA ", VersionText(driver),
                                 ", this binary needs ", VersionText(runtime)));
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    (void)cudaGetLastError();
    return Unusable(absl::StrCat("the driver sees none", VisibleDevicesNote()));
  }
  TCGEMM_RETURN_IF_ERROR(
      ConvertCudaError(error, {"cudaGetDeviceCount(&count)", __FILE__, __LINE__}));
  return count;
}

absl::StatusOr<int> Attribute(cudaDeviceAttr attribute, int ordinal) {
  int value = 0;
  TCGEMM_RETURN_IF_ERROR(TCGEMM_CUDA_STATUS(cudaDeviceGetAttribute(&value, attribute, ordinal)));
  return value;
}

// The first word of a file; "" when it cannot be read.
std::string FirstWord(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

int NumaNodeOf(const std::string& pci_id) {
  const std::string node = FirstWord(absl::StrCat("/sys/bus/pci/devices/", pci_id, "/numa_node"));
  return node.empty() ? -1 : std::atoi(node.c_str());
}

}  // namespace

std::string CudaInfo::Describe() const {
  return absl::StrFormat("%s, sm_%d, %d SMs, %.1f GiB, driver %s(CUDA %s), runtime %s", chip,
                         compute_capability, multiprocessors,
                         static_cast<double>(memory_bytes) / (1 << 30),
                         driver_version.empty() ? "" : driver_version + " ",
                         VersionText(driver_cuda), VersionText(runtime_cuda));
}

absl::StatusOr<CudaInfo> ReadCudaInfo(int ordinal) {
  TCGEMM_ASSIGN_OR_RETURN(const int count, CountDevices());
  if (ordinal < 0 || ordinal >= count) {
    return Unusable(
        absl::StrCat("there is no cuda:", ordinal, " among ", count, VisibleDevicesNote()));
  }
  cudaDeviceProp properties;
  TCGEMM_RETURN_IF_ERROR(TCGEMM_CUDA_STATUS(cudaGetDeviceProperties(&properties, ordinal)));
  CudaInfo info;
  info.chip = properties.name;
  info.compute_capability = properties.major * 10 + properties.minor;
  if (info.compute_capability < kMinComputeCapability) {
    return Unusable(absl::StrCat("cuda:", ordinal, ", ", info.chip, ", has compute capability ",
                                 properties.major, ".", properties.minor, "; 8.0 is needed"));
  }
  info.multiprocessors = properties.multiProcessorCount;
  info.memory_bytes = properties.totalGlobalMem;
  info.shared_bytes_per_block = properties.sharedMemPerBlockOptin;
  info.shared_bytes_per_multiprocessor = properties.sharedMemPerMultiprocessor;
  TCGEMM_ASSIGN_OR_RETURN(const int pitch, Attribute(cudaDevAttrMaxPitch, ordinal));
  info.max_copy_pitch = static_cast<size_t>(pitch);
  TCGEMM_ASSIGN_OR_RETURN(const int unified_addresses,
                          Attribute(cudaDevAttrUnifiedAddressing, ordinal));
  info.reads_pinned = unified_addresses != 0;
  char pci_id[32] = {};
  TCGEMM_RETURN_IF_ERROR(
      TCGEMM_CUDA_STATUS(cudaDeviceGetPCIBusId(pci_id, sizeof(pci_id), ordinal)));
  info.pci_id = absl::AsciiStrToLower(pci_id);
  info.numa_node = NumaNodeOf(info.pci_id);
  info.driver_version = FirstWord("/sys/module/nvidia/version");
  TCGEMM_RETURN_IF_ERROR(TCGEMM_CUDA_STATUS(cudaDriverGetVersion(&info.driver_cuda)));
  TCGEMM_RETURN_IF_ERROR(TCGEMM_CUDA_STATUS(cudaRuntimeGetVersion(&info.runtime_cuda)));
  return info;
}

PlanLimits PlanLimitsOf(const CudaInfo& info) {
  PlanLimits limits;
  if (info.compute_capability == 90) limits.kernels.push_back(KernelId::kTmaWgmma);
  if (info.compute_capability >= 90) limits.kernels.push_back(KernelId::kTmaMma);
  limits.kernels.push_back(KernelId::kCpAsyncMma);
  limits.max_problems = kMaxLaunchProblems;
  limits.compute_capability = info.compute_capability;
  limits.multiprocessors = info.multiprocessors;
  limits.shared_bytes_per_block = info.shared_bytes_per_block;
  limits.shared_bytes_per_multiprocessor = info.shared_bytes_per_multiprocessor;
  return limits;
}

}  // namespace tcgemm
