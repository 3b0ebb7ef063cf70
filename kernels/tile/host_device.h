// What is device code for nvcc is ordinary code for the host's compiler: the headers of tile/ are
// tested on the host, those of ptx/ at least parse there.
#ifndef TCGEMM_KERNELS_TILE_HOST_DEVICE_H_
#define TCGEMM_KERNELS_TILE_HOST_DEVICE_H_

#ifdef __CUDACC__
#define TCGEMM_UNROLL _Pragma("unroll")
#define TCGEMM_NO_UNROLL _Pragma("unroll 1")
#define TCGEMM_HD __host__ __device__ __forceinline__
#define TCGEMM_DEVICE __device__ __forceinline__
#else
#define TCGEMM_UNROLL
#define TCGEMM_NO_UNROLL
// Always: cpu_epilogue.cc compiles some of it for several instruction sets.
#define TCGEMM_HD inline __attribute__((always_inline))
#define TCGEMM_DEVICE inline
#endif

#endif  // TCGEMM_KERNELS_TILE_HOST_DEVICE_H_
