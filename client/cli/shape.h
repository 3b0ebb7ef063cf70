// Shapes of products as people write them: 512x384x640.
#ifndef TCGEMM_CLIENT_CLI_SHAPE_H_
#define TCGEMM_CLIENT_CLI_SHAPE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tcgemm::client {

struct ProductShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

// "MxNxK", each at least 1, with bf16 operands that fit one message of 2 GiB. INVALID_ARGUMENT,
// naming `flag`, otherwise.
absl::StatusOr<ProductShape> ParseShape(absl::string_view flag, absl::string_view text);

}  // namespace tcgemm::client

#endif  // TCGEMM_CLIENT_CLI_SHAPE_H_
