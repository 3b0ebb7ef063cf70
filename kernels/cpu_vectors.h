// TCGEMM_FOR_EACH_VECTOR_WIDTH: one body, compiled for several x86 instruction sets. Not public.
//
// Why not target_clones: its ifunc resolvers run before the sanitizers' start and crash there.
// -ffp-contract=off: what is not written as a fused operation is none, and what is (__builtin_fmaf)
// is exact in the baseline's library too. So the bits are those of the baseline.
#ifndef TCGEMM_KERNELS_CPU_VECTORS_H_
#define TCGEMM_KERNELS_CPU_VECTORS_H_

#include "kernels/cpu_pack.h"

#define TCGEMM_ALWAYS_INLINE inline __attribute__((always_inline))

#if defined(__x86_64__)
// Defines `result Name(parameters)`, which calls NameBody<floats per vector> arguments.
#define TCGEMM_MULTIVERSION(result, Name, parameters, arguments)     \
  namespace {                                                        \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))  \
  result Name##Avx512 parameters {                                   \
    return Name##Body<16> arguments;                                 \
  }                                                                  \
  __attribute__((target("avx2,fma"))) result Name##Avx2 parameters { \
    return Name##Body<8> arguments;                                  \
  }                                                                  \
  }                                                                  \
  result Name parameters {                                           \
    switch (kCpuVectors) {                                           \
      case CpuVectors::kAvx512:                                      \
        return Name##Avx512 arguments;                               \
      case CpuVectors::kAvx2:                                        \
        return Name##Avx2 arguments;                                 \
      case CpuVectors::kBaseline:                                    \
        break;                                                       \
    }                                                                \
    return Name##Body<4> arguments;                                  \
  }
#else
#define TCGEMM_MULTIVERSION(result, Name, parameters, arguments) \
  result Name parameters { return Name##Body<4> arguments; }
#endif

namespace tcgemm {
namespace {
[[maybe_unused]] const CpuVectors kCpuVectors = DetectCpuVectors();
}  // namespace
}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_CPU_VECTORS_H_
