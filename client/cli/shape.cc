#include "client/cli/shape.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tcgemm::client {

absl::StatusOr<ProductShape> ParseShape(absl::string_view flag, absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, 'x');
  int64_t sizes[3] = {};
  bool good = parts.size() == 3;
  for (size_t i = 0; good && i < 3; ++i) {
    good = absl::SimpleAtoi(parts[i], &sizes[i]) && sizes[i] >= 1 && sizes[i] <= (1 << 30);
  }
  const auto elements = static_cast<double>(sizes[2]) * static_cast<double>(sizes[0] + sizes[1]);
  if (!good || elements > 0x1p30) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, " '", text, "' must be MxNxK, each at least 1, with operands below 2 GiB"));
  }
  return ProductShape{.m = sizes[0], .n = sizes[1], .k = sizes[2]};
}

}  // namespace tcgemm::client
