#include "server/main/units.h"

#include <limits>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace tcgemm {
namespace {

struct Unit {
  std::string_view name;
  uint64_t factor;
};

constexpr Unit kDurationUnits[] = {{"ns", 1},
                                   {"us", 1'000},
                                   {"ms", 1'000'000},
                                   {"s", 1'000'000'000},
                                   {"m", 60'000'000'000},
                                   {"h", 3'600'000'000'000}};
constexpr Unit kByteUnits[] = {{"", 1},
                               {"B", 1},
                               {"KiB", uint64_t{1} << 10},
                               {"MiB", uint64_t{1} << 20},
                               {"GiB", uint64_t{1} << 30},
                               {"TiB", uint64_t{1} << 40},
                               {"KB", 1'000},
                               {"MB", 1'000'000},
                               {"GB", 1'000'000'000},
                               {"TB", 1'000'000'000'000}};

// "12ms" → 12 · factor; an error that lists the units.
absl::StatusOr<uint64_t> ParseWithUnit(const std::string& text, absl::Span<const Unit> units,
                                       const char* example) {
  size_t digits = 0;
  while (digits < text.size() && absl::ascii_isdigit(text[digits])) ++digits;
  uint64_t number = 0;
  const std::string_view unit = std::string_view(text).substr(digits);
  for (const Unit& known : units) {
    if (digits == 0 || known.name != unit) continue;
    if (!absl::SimpleAtoi(text.substr(0, digits), &number) ||
        number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / known.factor) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is too large"));
    }
    return number * known.factor;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' must be a whole number with a unit, like ", example));
}

}  // namespace

absl::StatusOr<Nanos> ParseDuration(const std::string& text) {
  const absl::StatusOr<uint64_t> ns = ParseWithUnit(text, kDurationUnits, "30s or 250ms");
  if (!ns.ok()) return ns.status();
  return Nanos(static_cast<int64_t>(*ns));
}

absl::StatusOr<uint64_t> ParseBytes(const std::string& text) {
  return ParseWithUnit(text, kByteUnits, "2GiB, 256MiB or 4096");
}

}  // namespace tcgemm
