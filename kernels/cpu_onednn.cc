#include "kernels/cpu_onednn.h"

namespace tcgemm {

absl::StatusOr<OnednnKernels> CreateOnednnKernels(int) {
  return absl::UnimplementedError("not yet");
}

}  // namespace tcgemm
