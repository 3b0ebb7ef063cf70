#include "kernels/cuda_status.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace tcgemm {

absl::Status ConvertCudaError(cudaError_t error, const CudaCall& call) {
  if (error == cudaSuccess) return absl::OkStatus();
  // A sticky error stays in the context whatever is done here.
  (void)cudaGetLastError();
  const char* slash = std::strrchr(call.file, '/');
  const std::string message = absl::StrCat(
      call.expression, " failed: ", cudaGetErrorName(error), " (", cudaGetErrorString(error),
      ") at ", slash == nullptr ? call.file : slash + 1, ":", call.line);
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

// The CUDA runtime API says of these: "The process must be terminated and relaunched to continue
// using CUDA", "the context cannot be used", or that the hardware failed.
bool IsStickyCudaError(cudaError_t error) {
  switch (error) {
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceUninitialized:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

}  // namespace tcgemm
