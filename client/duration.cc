#include "client/duration.h"

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tcgemm::client {
namespace {

struct Unit {
  absl::string_view name;
  double nanos;
};

// Ascending.
constexpr Unit kUnits[] = {{"ns", 1},  {"us", 1e3}, {"ms", 1e6},
                           {"s", 1e9}, {"m", 6e10}, {"h", 3.6e12}};
constexpr double kYearNanos = 365.0 * 24 * 3.6e12;

}  // namespace

absl::StatusOr<Nanos> ParseDuration(absl::string_view text) {
  // Letters of numbers (0x1, inf, 1e9) are not worth their surprises.
  const size_t unit_start = text.find_first_not_of("0123456789.");
  const size_t digits = std::min(unit_start, text.size());
  const absl::string_view unit_name = text.substr(digits);
  double number = 0;
  for (const Unit& unit : kUnits) {
    if (unit.name != unit_name || !absl::SimpleAtod(text.substr(0, digits), &number)) continue;
    const double nanos = std::round(number * unit.nanos);
    if (nanos > kYearNanos) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is more than a year"));
    }
    return Nanos(static_cast<int64_t>(nanos));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", text, "' is not a duration; write a number and ns, us, ms, s, m or h: 30s"));
}

std::string FormatDuration(Nanos duration) {
  const double nanos = static_cast<double>(duration.count());
  Unit best = kUnits[0];
  for (const Unit& unit : kUnits) {
    if (nanos >= unit.nanos) best = unit;
  }
  return absl::StrCat(absl::StrFormat("%.4g", nanos / best.nanos), best.name);
}

}  // namespace tcgemm::client
