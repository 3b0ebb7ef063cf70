// `bench --shared-memory`: A and B are written once, D is read where the server writes it.
#ifndef TCGEMM_CLIENT_CLI_BENCH_REGION_H_
#define TCGEMM_CLIENT_CLI_BENCH_REGION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "client/cli/bench_product.h"
#include "client/cli/shape.h"
#include "client/client.h"
#include "matrix/dtype.h"

namespace tcgemm::client {

struct RegionBenchOptions {
  ClientOptions server;  // at unix:/path
  ProductShape shape;
  DType output = DType::kBf16;
  bool transpose_a = false;
  bool transpose_b = false;
  bool resident = false;  // A and B are uploaded, only D lies in the region
  int clients = 1;
  int connections = 1;  // shared out over the clients
  uint64_t seed = 1;
  Nanos timeout{0};  // of each call
};

// Opens a region with A, B and a D for each client, fills A and B. Their matrices leave the server
// with the result. The errors of SharedRegion::Open and of MatrixClient::Upload.
absl::StatusOr<std::unique_ptr<BenchProduct>> CreateRegionProduct(
    const RegionBenchOptions& options);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_BENCH_REGION_H_
