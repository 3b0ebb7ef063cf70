// The driver's encoder of tensor maps, found at run time: libcuda is never linked. Not public.
#ifndef TCGEMM_KERNELS_TENSOR_MAP_ENCODE_H_
#define TCGEMM_KERNELS_TENSOR_MAP_ENCODE_H_

#include "absl/status/statusor.h"
#include "kernels/tensor_map_cache.h"

namespace tcgemm {

// An encoder that any thread may call. FAILED_PRECONDITION without a driver, or with one that has
// no cuTensorMapEncodeTiled. The encoder's own error is INTERNAL and carries the driver's name and
// text for it and the key.
absl::StatusOr<TensorMapEncoder> FindTensorMapEncoder();

}  // namespace tcgemm

#endif  // TCGEMM_KERNELS_TENSOR_MAP_ENCODE_H_
