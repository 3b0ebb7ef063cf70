// Failures on command, to see that the server ends as it promises. For tests only.
//
// TCGEMM_FAILPOINT in the environment:
//   hang_kernel:MxNxK   the first launch with a product of this shape never ends, nor what follows
//   sticky_error:MxNxK  it fails, and so does everything after it
//   self_test           every product misses its last step of K
//   nvml:/path          not a failure: this library is taken for NVML, whatever the device
// They wrap any device. A shape that the self-test does not have lets the server start first.
#ifndef TCGEMM_SERVER_MAIN_FAILPOINT_H_
#define TCGEMM_SERVER_MAIN_FAILPOINT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/gemm.h"

namespace tcgemm {

struct Failpoint {
  enum class Kind { kNone, kHangKernel, kStickyError, kSelfTest, kNvml };
  Kind kind = Kind::kNone;
  GemmShape shape;           // of the first two
  std::string nvml_library;  // of kNvml
};

// "" is none. INVALID_ARGUMENT for anything that is not as above.
absl::StatusOr<Failpoint> ParseFailpoint(const std::string& text);
// Of TCGEMM_FAILPOINT.
absl::StatusOr<Failpoint> FailpointFromEnvironment();

// `device` itself when there is none that concerns it. Warns in the log when there is one.
std::unique_ptr<Device> WithFailpoint(const Failpoint& failpoint, std::unique_ptr<Device> device);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_MAIN_FAILPOINT_H_
