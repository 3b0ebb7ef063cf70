#include "bench/lanes_arm.h"

#include <array>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/client.h"
#include "matrix/matrix.h"

namespace tcgemm {
namespace {

constexpr int kTurns = 8;  // of each, alternating: a machine's moods meet both

double Ms(Nanos time) { return std::chrono::duration<double, std::milli>(time).count(); }

}  // namespace

absl::StatusOr<LanesTimes> MeasureLanes(const LanesCell& cell) {
  long long m, n, k;
  if (std::sscanf(cell.shape.c_str(), "%lldx%lldx%lld", &m, &n, &k) != 3 || m < 1 || n < 1 ||
      k < 1) {
    return absl::InvalidArgumentError(absl::StrCat("'", cell.shape, "' is not MxNxK"));
  }
  LanesTimes times{.m = m, .n = n, .k = k};
  Matrix a(m, k, DType::kBf16);
  Matrix b(k, n, DType::kBf16);
  Matrix d(m, n, DType::kBf16);
  FillNormal(a, 1);
  FillNormal(b, 2);
  FillBytes(d, 0xff);  // its pages are there
  std::array<std::unique_ptr<client::Client>, 2> clients;
  for (const bool single : {false, true}) {
    TCGEMM_ASSIGN_OR_RETURN(
        clients[single],
        client::Client::Create({.server = cell.server, .lanes = single ? 1 : cell.lanes}));
  }
  const auto multiply = [&](bool single) -> absl::StatusOr<double> {
    const TimePoint start = Clock::Real()->Now();
    TCGEMM_RETURN_IF_ERROR(clients[single]
                               ->Matmul(a.view(), b.view(), DType::kBf16, d,
                                        {.timeout = std::chrono::seconds(60), .retry = false})
                               .status());
    return Ms(Clock::Real()->Now() - start);
  };
  for (const bool single : {false, true}) TCGEMM_RETURN_IF_ERROR(multiply(single).status());
  const double turn_ms = cell.seconds * 1000 / (2 * kTurns);
  for (int turn = 0; turn < 2 * kTurns; ++turn) {
    const bool single = turn % 2 == 0;
    for (double spent = 0; spent < turn_ms;) {
      TCGEMM_ASSIGN_OR_RETURN(const double ms, multiply(single));
      (single ? times.single_ms : times.lanes_ms).push_back(ms);
      spent += ms;
    }
  }
  return times;
}

}  // namespace tcgemm
