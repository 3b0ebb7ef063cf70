// Products over several connections, in turns with the same products over one.
#ifndef TCGEMM_BENCH_LANES_ARM_H_
#define TCGEMM_BENCH_LANES_ARM_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tcgemm {

struct LanesCell {
  std::string server;
  std::string shape;  // "MxNxK"
  int lanes = 2;
  double seconds = 2;  // for both together
};

struct LanesTimes {
  int64_t m = 0, n = 0, k = 0;
  std::vector<double> lanes_ms;   // of each product, one client after the other
  std::vector<double> single_ms;  // over one connection
};

// Blocks. One client; bf16 operands and results. The first product of each kind only connects.
// INVALID_ARGUMENT for no shape; the first failure of a product.
absl::StatusOr<LanesTimes> MeasureLanes(const LanesCell& cell);

}  // namespace tcgemm

#endif  // TCGEMM_BENCH_LANES_ARM_H_
