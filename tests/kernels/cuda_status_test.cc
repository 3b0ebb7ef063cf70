#include "kernels/cuda_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tcgemm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

cudaError_t Return(cudaError_t error) { return error; }

TEST(CudaStatusTest, SaysWhatFailedWhereAndWhy) {
  const absl::Status status = TCGEMM_CUDA_STATUS(Return(cudaErrorInvalidValue));
  EXPECT_TRUE(absl::IsInternal(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("Return(cudaErrorInvalidValue) failed: cudaErrorInvalidValue ("),
                    HasSubstr("invalid argument"), HasSubstr(" at cuda_status_test.cc:")));
}

TEST(CudaStatusTest, SuccessIsOkAndNoMemoryIsExhaustion) {
  EXPECT_TRUE(TCGEMM_CUDA_STATUS(Return(cudaSuccess)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(TCGEMM_CUDA_STATUS(Return(cudaErrorMemoryAllocation))));
}

TEST(CudaStatusTest, HealthEndsWithTheFirstStickyErrorForGood) {
  CudaHealth health;
  EXPECT_TRUE(health.healthy());
  EXPECT_TRUE(TCGEMM_CUDA_CHECK(health, Return(cudaSuccess)).ok());
  EXPECT_FALSE(TCGEMM_CUDA_CHECK(health, Return(cudaErrorInvalidValue)).ok());
  EXPECT_FALSE(TCGEMM_CUDA_CHECK(health, Return(cudaErrorMemoryAllocation)).ok());
  EXPECT_FALSE(TCGEMM_CUDA_CHECK(health, Return(cudaErrorLaunchOutOfResources)).ok());
  EXPECT_TRUE(health.healthy());
  EXPECT_FALSE(TCGEMM_CUDA_CHECK(health, Return(cudaErrorIllegalAddress)).ok());
  EXPECT_FALSE(health.healthy());
  EXPECT_TRUE(TCGEMM_CUDA_CHECK(health, Return(cudaSuccess)).ok());
  EXPECT_FALSE(health.healthy());
}

TEST(CudaStatusTest, LostContextsAreSticky) {
  for (cudaError_t error :
       {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorLaunchTimeout,
        cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable, cudaErrorHardwareStackError,
        cudaErrorIllegalInstruction, cudaErrorMisalignedAddress, cudaErrorInvalidPc,
        cudaErrorAssert, cudaErrorContained, cudaErrorUnknown}) {
    EXPECT_TRUE(IsStickyCudaError(error)) << cudaGetErrorName(error);
  }
  for (cudaError_t error : {cudaSuccess, cudaErrorNotReady, cudaErrorInvalidValue,
                            cudaErrorMemoryAllocation, cudaErrorInvalidResourceHandle}) {
    EXPECT_FALSE(IsStickyCudaError(error)) << cudaGetErrorName(error);
  }
}

}  // namespace
}  // namespace tcgemm
