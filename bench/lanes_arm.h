// Products over several connections, in turns with the same products over one.
#ifndef TCGEMM_BENCH_LANES_ARM_H_
#define TCGEMM_BENCH_LANES_ARM_H_

#include <string>

namespace tcgemm {

struct LanesCell {
  std::string server;
  std::string shape;  // "MxNxK"
  int lanes = 2;
  double seconds = 2;  // for both together
};

// As bench/results wants them: an object, and a line of rpc.csv.
struct LanesRow {
  std::string json;
  std::string csv;
  int failures = 0;
};

// Blocks. One client; bf16 operands and results; the first product of each kind only connects. The
// limit in the CSV is the product over one connection.
LanesRow MeasureLanes(const LanesCell& cell);

}  // namespace tcgemm

#endif  // TCGEMM_BENCH_LANES_ARM_H_
