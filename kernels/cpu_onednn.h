// oneDNN as the CPU's inner kernels. Not public. Only in builds with TCGEMM_ONEDNN.
#ifndef TCGEMM_KERNELS_CPU_ONEDNN_H_
#define TCGEMM_KERNELS_CPU_ONEDNN_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cpu_gemm.h"

namespace tcgemm {

struct OnednnKernels {
  // Operands widened to fp32; any CPU.
  std::unique_ptr<CpuInnerKernel> fp32;
  // bf16 dot products; null where the CPU (or ONEDNN_MAX_CPU_ISA) has none. Uses `fp32` for what
  // they would get wrong.
  std::unique_ptr<CpuInnerKernel> bf16;
  std::string isa;      // "avx512_bf16", …
  std::string version;  // "2.6.3"
};

// For workers [0, workers). Compiles every primitive that will ever run. Threads that run the
// kernels have OpenMP set to one thread, for themselves only.
// INTERNAL when oneDNN refuses; UNIMPLEMENTED when it has no such primitive on this CPU.
absl::StatusOr<OnednnKernels> CreateOnednnKernels(int workers);

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_CPU_ONEDNN_H_
