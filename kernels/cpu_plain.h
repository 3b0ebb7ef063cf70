// The CPU kernel without dependencies: fp32 multiply, then add, K ascending. Not public.
#ifndef TCGEMM_KERNELS_CPU_PLAIN_H_
#define TCGEMM_KERNELS_CPU_PLAIN_H_

#include <memory>

#include "kernels/cpu_gemm.h"

namespace tcgemm {

// For workers [0, workers). Its operations return no errors. The bits are those of
//   float s = 0; for (k) s = s + a[i][k] * b[k][j];
// on every machine.
std::unique_ptr<CpuInnerKernel> CreatePlainKernel(int workers);

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_CPU_PLAIN_H_
