// From a tile that the plan names to the kernel that was compiled for it. Host code of .cu files.
//
// KERNEL says what differs: kEntries, the tiles that it is compiled for; kMaxProblems of a batch;
// kKernel<ENTRY, PROBLEMS>, the kernel's address; MakeParameters<PROBLEMS>(arguments), its only
// parameter; SharedBytes(tile), Threads(tile) and Blocks(arguments) of a launch; kOverlapsPrevious,
// whether it may start before the kernel before it has ended (ptx/grid_dependency.h).
#ifndef TCGEMM_KERNELS_TILE_DISPATCH_H_
#define TCGEMM_KERNELS_TILE_DISPATCH_H_

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/gpu_tiles.h"
#include "kernels/launch.h"

namespace tcgemm {

// Parameters cost time by their size, 30 KiB of them some 8 µs: small batches get small ones.
inline constexpr int kFewProblems = 8;

// sm_120 code holds only the tiles that fit it; all other code, and the PTX for chips to come, all.
#ifdef __CUDA_ARCH__
constexpr bool IsCompiledHere(const GpuTileEntry& entry) {
  return __CUDA_ARCH__ < 1200 || entry.compute_capability == 120;
}
#else
constexpr bool IsCompiledHere(const GpuTileEntry&) { return true; }
#endif

template <typename KERNEL, size_t ENTRY, int PROBLEMS>
cudaError_t LaunchInstance(const LaunchArguments& arguments, cudaStream_t stream) {
  constexpr GpuTile kTile = KERNEL::kEntries[ENTRY].tile;
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if constexpr (kTile.blocks() > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = kTile.blocks();
    attributes[count].val.clusterDim.y = 1;
    attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  if constexpr (KERNEL::kOverlapsPrevious) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(KERNEL::Blocks(arguments)));
  config.blockDim = dim3(static_cast<unsigned>(KERNEL::Threads(kTile)));
  config.dynamicSmemBytes = KERNEL::SharedBytes(kTile);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  auto parameters = KERNEL::template MakeParameters<PROBLEMS>(arguments);
  void* pointers[] = {&parameters};
  return cudaLaunchKernelExC(
      &config, reinterpret_cast<const void*>(KERNEL::template kKernel<ENTRY, PROBLEMS>), pointers);
}

template <typename KERNEL, size_t ENTRY>
cudaError_t LaunchEntry(const LaunchArguments& arguments, cudaStream_t stream) {
  if (arguments.problem_count == 1) {
    return LaunchInstance<KERNEL, ENTRY, 1>(arguments, stream);
  }
  if constexpr (KERNEL::kEntries[ENTRY].grouped) {
    if (arguments.problem_count <= kFewProblems) {
      return LaunchInstance<KERNEL, ENTRY, kFewProblems>(arguments, stream);
    }
    return LaunchInstance<KERNEL, ENTRY, KERNEL::kMaxProblems>(arguments, stream);
  }
  return cudaErrorInvalidValue;
}

template <typename KERNEL, size_t... ENTRY>
cudaError_t LaunchAny(const LaunchArguments& arguments, cudaStream_t stream,
                      std::index_sequence<ENTRY...>) {
  cudaError_t result = cudaErrorInvalidValue;
  static_cast<void>(((KERNEL::kEntries[ENTRY].tile == arguments.tile &&
                      (result = LaunchEntry<KERNEL, ENTRY>(arguments, stream), true)) ||
                     ...));
  return result;
}

template <typename KERNEL>
cudaError_t LaunchTiled(const LaunchArguments& arguments, cudaStream_t stream) {
  if (arguments.problem_count < 1 || arguments.problem_count > KERNEL::kMaxProblems) {
    return cudaErrorInvalidValue;
  }
  if (arguments.tile_count == 0) return cudaSuccess;  // every D is empty
  return LaunchAny<KERNEL>(arguments, stream, std::make_index_sequence<KERNEL::kEntries.size()>());
}

template <typename KERNEL, size_t ENTRY, int PROBLEMS>
cudaError_t PrepareInstance(int shared_limit) {
  constexpr size_t kBytes = KERNEL::SharedBytes(KERNEL::kEntries[ENTRY].tile);
  if (kBytes > static_cast<size_t>(shared_limit)) return cudaSuccess;
  // Setting the attribute loads the code, too.
  return cudaFuncSetAttribute(
      reinterpret_cast<const void*>(KERNEL::template kKernel<ENTRY, PROBLEMS>),
      cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
}

template <typename KERNEL, size_t ENTRY>
cudaError_t PrepareEntry(int shared_limit) {
  const cudaError_t result = PrepareInstance<KERNEL, ENTRY, 1>(shared_limit);
  if constexpr (KERNEL::kEntries[ENTRY].grouped) {
    if (result != cudaSuccess) return result;
    const cudaError_t few = PrepareInstance<KERNEL, ENTRY, kFewProblems>(shared_limit);
    if (few != cudaSuccess) return few;
    return PrepareInstance<KERNEL, ENTRY, KERNEL::kMaxProblems>(shared_limit);
  }
  return result;
}

template <typename KERNEL, size_t... ENTRY>
cudaError_t PrepareAll(int shared_limit, std::index_sequence<ENTRY...>) {
  cudaError_t result = cudaSuccess;
  static_cast<void>((((result = PrepareEntry<KERNEL, ENTRY>(shared_limit)) == cudaSuccess) && ...));
  return result;
}

template <typename KERNEL>
cudaError_t PrepareTiled() {
  int device;
  int shared_limit;
  cudaError_t result = cudaGetDevice(&device);
  if (result != cudaSuccess) return result;
  result = cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (result != cudaSuccess) return result;
  return PrepareAll<KERNEL>(shared_limit, std::make_index_sequence<KERNEL::kEntries.size()>());
}

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TILE_DISPATCH_H_
