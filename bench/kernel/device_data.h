// Random operands, poison and comparisons, made on the device: the host would take longer than the
// measurement.
#ifndef TCGEMM_BENCH_KERNEL_DEVICE_DATA_H_
#define TCGEMM_BENCH_KERNEL_DEVICE_DATA_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tcgemm::bench {

// `count` independent standard normals, as bf16. Asynchronous, on the default stream.
cudaError_t FillNormalOnDevice(void* bf16, int64_t count, uint64_t seed);
cudaError_t FillNormalFp32OnDevice(void* fp32, int64_t count, uint64_t seed);

struct DeviceMatrix {
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t ld = 0;
  bool fp32 = false;  // else bf16
};

// max |x − reference| over all elements; infinity where one of them is NaN. Waits for the device.
// `scratch` is 4 bytes of device memory.
cudaError_t LargestDifference(const DeviceMatrix& x, const DeviceMatrix& reference, void* scratch,
                              float& difference);

}  // namespace tcgemm::bench

#endif  // TCGEMM_BENCH_KERNEL_DEVICE_DATA_H_
