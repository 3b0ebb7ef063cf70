#include "client/product_info.h"

namespace tcgemm::client {

MatmulInfo MatmulInfoOf(const v1::MatmulResponse& response) {
  const v1::Timings& times = response.timings();
  return {.kernel = response.kernel(),
          .tflops = response.tflops(),
          .batched_with = response.batched_with(),
          .attempts = 1,
          .receive = Nanos(times.receive_ns()),
          .decode = Nanos(times.decode_ns()),
          .queue = Nanos(times.queue_ns()),
          .copy_in = Nanos(times.copy_in_ns()),
          .kernel_time = Nanos(times.kernel_ns()),
          .verify = Nanos(times.verify_ns()),
          .copy_out = Nanos(times.copy_out_ns())};
}

}  // namespace tcgemm::client
