#include <cuda/ptx>

#include "kernels/ptx/address.h"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/elect.h"
#include "kernels/ptx/ldmatrix.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/mma.h"
#include "kernels/ptx/movmatrix.h"
#include "kernels/ptx/stmatrix.h"
#include "kernels/ptx/tma.h"
#include "tests/gpu/ptx_kernels.h"

namespace tcgemm {
namespace {

namespace twin = cuda::ptx;

__global__ void ElectKernel(uint32_t* chosen) {
  for (int call = 0; call < 3; ++call) {
    const uint32_t mask = __ballot_sync(0xffffffff, ptx::ElectOne());
    if (threadIdx.x == 0) chosen[call] = mask;
  }
}

struct OurBarrier {
  static __device__ void Init(uint64_t* b, uint32_t count) {
    ptx::MbarrierInit(ptx::SharedAddress(b), count);
    ptx::FenceMbarrierInit();
  }
  static __device__ void Arrive(uint64_t* b) { ptx::MbarrierArrive(ptx::SharedAddress(b)); }
  static __device__ void ArriveExpectTx(uint64_t* b, uint32_t bytes) {
    ptx::MbarrierArriveExpectTx(ptx::SharedAddress(b), bytes);
  }
  static __device__ bool TryWait(uint64_t* b, uint32_t parity) {
    return ptx::MbarrierTryWait(ptx::SharedAddress(b), parity);
  }
  static __device__ void Wait(uint64_t* b, uint32_t parity) {
    ptx::MbarrierWait(ptx::SharedAddress(b), parity);
  }
};

struct TwinBarrier {
  static __device__ void Init(uint64_t* b, uint32_t count) {
    twin::mbarrier_init(b, count);
    twin::fence_mbarrier_init(twin::sem_release, twin::scope_cluster);
  }
  static __device__ void Arrive(uint64_t* b) { twin::mbarrier_arrive(b); }
  static __device__ void ArriveExpectTx(uint64_t* b, uint32_t bytes) {
    twin::mbarrier_arrive_expect_tx(twin::sem_release, twin::scope_cta, twin::space_shared, b,
                                    bytes);
  }
  static __device__ bool TryWait(uint64_t* b, uint32_t parity) {
    return twin::mbarrier_try_wait_parity(b, parity);
  }
  static __device__ void Wait(uint64_t* b, uint32_t parity) {
    while (!TryWait(b, parity)) {
    }
  }
};

// The same life for both kinds of barrier; ptx_test.cc says what each step must show.
template <typename Barrier>
__device__ void LiveBarrier(uint64_t* barrier, void* landing, const void* source,
                            BarrierStates* out) {
  int step = 0;
  const auto look = [&] {
    for (uint32_t parity : {0u, 1u}) {
      out->complete[step][parity] = Barrier::TryWait(barrier, parity) ? 1 : 0;
    }
    ++step;
  };
  Barrier::Init(barrier, 2);
  look();
  Barrier::Arrive(barrier);
  look();
  Barrier::ArriveExpectTx(barrier, 16);
  look();  // both have arrived, the bytes have not
  twin::cp_async_bulk(twin::space_cluster, twin::space_global, landing, source, 16, barrier);
  Barrier::Wait(barrier, 0);
  look();
  Barrier::Arrive(barrier);
  look();
  Barrier::Arrive(barrier);
  look();
}

__global__ void BarrierKernel(const void* source, BarrierStates* ours, BarrierStates* twins) {
  __shared__ alignas(16) uint64_t barriers[2];
  __shared__ alignas(16) unsigned char landing[2][16];
  LiveBarrier<OurBarrier>(&barriers[0], landing[0], source, ours);
  LiveBarrier<TwinBarrier>(&barriers[1], landing[1], source, twins);
}

__global__ void TmaKernel(const __grid_constant__ TensorMap map, BoxStart start, BoxBytes* ours,
                          BoxBytes* twins) {
  __shared__ alignas(1024) BoxBytes boxes[2];
  __shared__ uint64_t barriers[2];
  if (threadIdx.x == 0) {
    OurBarrier::Init(&barriers[0], 1);
    OurBarrier::Init(&barriers[1], 1);
    ptx::PrefetchTensorMap(&map);
    OurBarrier::ArriveExpectTx(&barriers[0], sizeof(BoxBytes));
    ptx::TmaLoad2d(ptx::SharedAddress(&boxes[0]), &map, {.inner = start.column, .outer = start.row},
                   ptx::SharedAddress(&barriers[0]));
    OurBarrier::ArriveExpectTx(&barriers[1], sizeof(BoxBytes));
    const int32_t coordinates[2] = {start.column, start.row};
    twin::cp_async_bulk_tensor(twin::space_cluster, twin::space_global, &boxes[1], &map,
                               coordinates, &barriers[1]);
  }
  __syncthreads();
  OurBarrier::Wait(&barriers[0], 0);
  OurBarrier::Wait(&barriers[1], 0);
  for (int i = threadIdx.x; i < kBoxSide * kBoxSide; i += blockDim.x) {
    ours->elements[i] = boxes[0].elements[i];
    twins->elements[i] = boxes[1].elements[i];
  }
}

__global__ void TmaSlabKernel(const __grid_constant__ TensorMap map, BoxStart start, TwoBoxes* ours,
                              TwoBoxes* twins) {
  extern __shared__ unsigned char dynamic_shared[];
  __shared__ uint64_t barriers[2];
  const uintptr_t at = (reinterpret_cast<uintptr_t>(dynamic_shared) + 1023) & ~uintptr_t{1023};
  auto* const loaded = reinterpret_cast<TwoBoxes*>(at);
  if (threadIdx.x == 0) {
    OurBarrier::Init(&barriers[0], 1);
    OurBarrier::Init(&barriers[1], 1);
    OurBarrier::ArriveExpectTx(&barriers[0], sizeof(TwoBoxes));
    ptx::TmaLoad3d(ptx::SharedAddress(&loaded[0]), &map,
                   {.inner = 0, .outer = start.row, .slab = start.column},
                   ptx::SharedAddress(&barriers[0]));
    OurBarrier::ArriveExpectTx(&barriers[1], sizeof(TwoBoxes));
    const int32_t coordinates[3] = {0, start.row, start.column};
    twin::cp_async_bulk_tensor(twin::space_cluster, twin::space_global, &loaded[1], &map,
                               coordinates, &barriers[1]);
  }
  __syncthreads();
  OurBarrier::Wait(&barriers[0], 0);
  OurBarrier::Wait(&barriers[1], 0);
  for (int i = threadIdx.x; i < 2 * kBoxSide * kBoxSide; i += blockDim.x) {
    const int slab = i / (kBoxSide * kBoxSide);
    const int element = i % (kBoxSide * kBoxSide);
    ours->slabs[slab].elements[element] = loaded[0].slabs[slab].elements[element];
    twins->slabs[slab].elements[element] = loaded[1].slabs[slab].elements[element];
  }
}

__global__ void CpAsyncKernel(const CopiedBytes* source, CopiedBytes* copied) {
  __shared__ alignas(16) CopiedBytes landing;
  const unsigned lane = threadIdx.x;
  for (int i = 0; i < 16; ++i) landing.bytes[lane][i] = 0xee;
  ptx::CpAsync16(ptx::SharedAddress(landing.bytes[lane]), source->bytes[lane], lane % 17);
  ptx::CpAsyncCommit();
  ptx::CpAsyncWait<0>();
  for (int i = 0; i < 16; ++i) copied->bytes[lane][i] = landing.bytes[lane][i];
}

__global__ void LdmatrixKernel(const FourMatrices* matrices, Fragments* plain,
                               Fragments* transposed, Fragments* turned, FourMatrices* stored) {
  __shared__ alignas(16) FourMatrices shared;
  __shared__ alignas(16) FourMatrices way_back;
  const unsigned lane = threadIdx.x;
  for (int i = 0; i < 8; ++i) {
    shared.elements[lane / 8][lane % 8][i] = matrices->elements[lane / 8][lane % 8][i];
  }
  __syncthreads();
  const uint32_t row = ptx::SharedAddress(shared.elements[lane / 8][lane % 8]);
  ptx::Ldmatrix4(plain->lane[lane], row);
  ptx::Ldmatrix4Transposed(transposed->lane[lane], row);
  for (int i = 0; i < 4; ++i) {
    turned->lane[lane][i] = ptx::MovmatrixTransposed(plain->lane[lane][i]);
  }
  ptx::Stmatrix4(ptx::SharedAddress(way_back.elements[lane / 8][lane % 8]), plain->lane[lane]);
  __syncthreads();
  for (int i = 0; i < 8; ++i) {
    stored->elements[lane / 8][lane % 8][i] = way_back.elements[lane / 8][lane % 8][i];
  }
}

__device__ uint32_t Pair(uint16_t low, uint16_t high) {
  return static_cast<uint32_t>(high) << 16 | low;
}

__global__ void MmaKernel(MmaMatrices* matrices) {
  const unsigned g = threadIdx.x / 4;
  const unsigned p = threadIdx.x % 4 * 2;
  uint32_t a[4];
  for (unsigned i = 0; i < 4; ++i) {
    const uint16_t* row = matrices->a[g + i % 2 * 8] + p + i / 2 * 8;
    a[i] = Pair(row[0], row[1]);
  }
  const uint32_t b0 = Pair(matrices->b[p][g], matrices->b[p + 1][g]);
  const uint32_t b1 = Pair(matrices->b[p + 8][g], matrices->b[p + 9][g]);
  float d[4];
  for (unsigned i = 0; i < 4; ++i) d[i] = matrices->d[g + i / 2 * 8][p + i % 2];
  ptx::MmaBf16M16N8K16(d, a, b0, b1);
  for (unsigned i = 0; i < 4; ++i) matrices->d[g + i / 2 * 8][p + i % 2] = d[i];
}

// A struct in memory that host and device share, for the length of a test.
template <typename T>
class Shared {
 public:
  Shared() : error_(cudaMallocManaged(&value_, sizeof(T))) {}
  ~Shared() { cudaFree(value_); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  cudaError_t error() const { return error_; }
  T* get() const { return value_; }

 private:
  T* value_ = nullptr;
  cudaError_t error_;
};

cudaError_t Finish() {
  const cudaError_t launched = cudaGetLastError();
  return launched != cudaSuccess ? launched : cudaDeviceSynchronize();
}

}  // namespace

cudaError_t RunElect(uint32_t (&chosen)[3]) {
  Shared<uint32_t[3]> out;
  if (out.error() != cudaSuccess) return out.error();
  ElectKernel<<<1, 32>>>(*out.get());
  const cudaError_t error = Finish();
  for (int i = 0; i < 3 && error == cudaSuccess; ++i) chosen[i] = (*out.get())[i];
  return error;
}

cudaError_t RunBarriers(BarrierStates& ours, BarrierStates& twins) {
  Shared<BarrierStates[2]> out;
  Shared<CopiedBytes> source;
  if (out.error() != cudaSuccess || source.error() != cudaSuccess) return cudaErrorMemoryAllocation;
  *source.get() = {};
  BarrierKernel<<<1, 1>>>(source.get(), &(*out.get())[0], &(*out.get())[1]);
  const cudaError_t error = Finish();
  if (error != cudaSuccess) return error;
  ours = (*out.get())[0];
  twins = (*out.get())[1];
  return error;
}

cudaError_t RunTmaLoad(const TensorMap& map, BoxStart start, BoxBytes& ours, BoxBytes& twins) {
  Shared<BoxBytes[2]> out;
  if (out.error() != cudaSuccess) return out.error();
  TmaKernel<<<1, 128>>>(map, start, &(*out.get())[0], &(*out.get())[1]);
  const cudaError_t error = Finish();
  if (error != cudaSuccess) return error;
  ours = (*out.get())[0];
  twins = (*out.get())[1];
  return error;
}

cudaError_t RunTmaLoadSlabs(const TensorMap& map, BoxStart start, TwoBoxes& ours, TwoBoxes& twins) {
  Shared<TwoBoxes[2]> out;
  if (out.error() != cudaSuccess) return out.error();
  constexpr int kBytes = 2 * sizeof(TwoBoxes) + 1024;
  TmaSlabKernel<<<1, 128, kBytes>>>(map, start, &(*out.get())[0], &(*out.get())[1]);
  const cudaError_t error = Finish();
  if (error != cudaSuccess) return error;
  ours = (*out.get())[0];
  twins = (*out.get())[1];
  return error;
}

cudaError_t RunCpAsync(const CopiedBytes& source, CopiedBytes& copied) {
  Shared<CopiedBytes[2]> memory;
  if (memory.error() != cudaSuccess) return memory.error();
  (*memory.get())[0] = source;
  CpAsyncKernel<<<1, 32>>>(&(*memory.get())[0], &(*memory.get())[1]);
  const cudaError_t error = Finish();
  if (error == cudaSuccess) copied = (*memory.get())[1];
  return error;
}

cudaError_t RunLdmatrix(const FourMatrices& matrices, Fragments& plain, Fragments& transposed,
                        Fragments& turned, FourMatrices& stored) {
  Shared<FourMatrices[2]> memory;
  Shared<Fragments[3]> out;
  if (memory.error() != cudaSuccess || out.error() != cudaSuccess) return cudaErrorMemoryAllocation;
  (*memory.get())[0] = matrices;
  LdmatrixKernel<<<1, 32>>>(&(*memory.get())[0], &(*out.get())[0], &(*out.get())[1],
                            &(*out.get())[2], &(*memory.get())[1]);
  const cudaError_t error = Finish();
  if (error != cudaSuccess) return error;
  plain = (*out.get())[0];
  transposed = (*out.get())[1];
  turned = (*out.get())[2];
  stored = (*memory.get())[1];
  return error;
}

cudaError_t RunMma(MmaMatrices& matrices) {
  Shared<MmaMatrices> memory;
  if (memory.error() != cudaSuccess) return memory.error();
  *memory.get() = matrices;
  MmaKernel<<<1, 32>>>(memory.get());
  const cudaError_t error = Finish();
  if (error == cudaSuccess) matrices = *memory.get();
  return error;
}

}  // namespace tcgemm
