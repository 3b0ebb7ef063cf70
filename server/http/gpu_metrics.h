// The metrics of the GPU itself, as far as it tells. docs/OPERATIONS.md explains them.
//
// tcgemm_gpu_telemetry_up and the counters are always there. What is measured (utilisation,
// temperature, …) is there while it is known, and only if the device tells it: 0 degrees or 0 W
// would be a lie, and an old reading looks like a new one.
#ifndef TCGEMM_SERVER_HTTP_GPU_METRICS_H_
#define TCGEMM_SERVER_HTTP_GPU_METRICS_H_

#include <prometheus/metric_family.h>

#include <vector>

#include "server/telemetry/gpu_account.h"

namespace tcgemm {

// Those that have a series, in the order of the documentation. An empty snapshot is that of a
// server without a GPU.
std::vector<prometheus::MetricFamily> GpuFamilies(const GpuSnapshot& snapshot);

}  // namespace tcgemm

#endif  // TCGEMM_SERVER_HTTP_GPU_METRICS_H_
