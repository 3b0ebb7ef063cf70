#include "kernels/tensor_map_encode.h"

#include <cuda.h>  // types alone
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda_status.h"

namespace tcgemm {
namespace {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));

// The version of the driver API that has cuTensorMapEncodeTiled.
constexpr unsigned kDriverApiVersion = 12000;

struct Driver {
  decltype(&cuTensorMapEncodeTiled) encode_tiled = nullptr;
  decltype(&cuGetErrorName) error_name = nullptr;
  decltype(&cuGetErrorString) error_string = nullptr;
};

template <typename Function>
absl::Status FindFunction(const char* name, Function** function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const absl::Status status = TCGEMM_CUDA_STATUS(cudaGetDriverEntryPointByVersion(
      name, &address, kDriverApiVersion, cudaEnableDefault, &result));
  if (!status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(name, ": ", std::string(status.message())));
  }
  if (result != cudaDriverEntryPointSuccess || address == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the driver has no ", name, " of API version ", kDriverApiVersion));
  }
  *function = reinterpret_cast<Function*>(address);
  return absl::OkStatus();
}

CUtensorMapDataType DataTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kFp32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::kInt8:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    case DType::kInt32:
      return CU_TENSOR_MAP_DATA_TYPE_INT32;
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

absl::StatusOr<TensorMap> Encode(const Driver& driver, const TensorMapKey& key) {
  const bool slabs = key.box_slabs > 1;
  const cuuint64_t dimensions[3] = {slabs ? key.box_columns : key.columns, key.rows,
                                    key.columns / key.box_columns};
  const cuuint64_t strides[2] = {key.row_stride_bytes, key.box_columns * DTypeSize(key.dtype)};
  const cuuint32_t box[3] = {key.box_columns, key.box_rows, key.box_slabs};
  const cuuint32_t element_strides[3] = {1, 1, 1};
  const CUtensorMapSwizzle swizzle = key.swizzle == TensorMapSwizzle::k128Bytes
                                         ? CU_TENSOR_MAP_SWIZZLE_128B
                                         : CU_TENSOR_MAP_SWIZZLE_64B;
  const CUtensorMapL2promotion promotion = kTensorMapL2Promotion == TensorMapL2Promotion::k128Bytes
                                               ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B
                                               : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  CUtensorMap encoded;  // aligned as its type wants it; 64 bytes are what TMA wants
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a key is plain data
  void* const address = reinterpret_cast<void*>(key.address);
  const CUresult result =
      driver.encode_tiled(&encoded, DataTypeOf(key.dtype), slabs ? 3 : 2, address, dimensions,
                          strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                          promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) {
    TensorMap map;
    std::memcpy(&map, &encoded, sizeof(map));
    return map;
  }
  const char* name = nullptr;
  const char* text = nullptr;
  driver.error_name(result, &name);
  driver.error_string(result, &text);
  return absl::InternalError(
      absl::StrCat("cuTensorMapEncodeTiled failed: ", name == nullptr ? "unknown error" : name,
                   " (", text == nullptr ? "" : text, ") for ", key.ToString()));
}

}  // namespace

absl::StatusOr<TensorMapEncoder> FindTensorMapEncoder() {
  Driver driver;
  TCGEMM_RETURN_IF_ERROR(FindFunction("cuTensorMapEncodeTiled", &driver.encode_tiled));
  TCGEMM_RETURN_IF_ERROR(FindFunction("cuGetErrorName", &driver.error_name));
  TCGEMM_RETURN_IF_ERROR(FindFunction("cuGetErrorString", &driver.error_string));
  return [driver](const TensorMapKey& key) { return Encode(driver, key); };
}

}  // namespace tcgemm
