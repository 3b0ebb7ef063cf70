#include "bench/lanes_arm.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "client/client.h"
#include "matrix/matrix.h"

namespace tcgemm {
namespace {

constexpr int kTurns = 8;  // of each, alternating: a machine's moods meet both

double Ms(Nanos time) { return std::chrono::duration<double, std::milli>(time).count(); }

double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(share * static_cast<double>(values.size())))];
}

// Normals that repeat every 2 MiB: the road does not look at them.
void FillQuickly(Matrix& matrix, uint64_t seed) {
  Matrix some(1, 1 << 20, DType::kBf16);
  FillNormal(some, seed);
  for (size_t at = 0; at < matrix.bytes(); at += some.bytes()) {
    std::memcpy(matrix.data<std::byte>() + at, some.data<std::byte>(),
                std::min(some.bytes(), matrix.bytes() - at));
  }
}

struct LanesTimes {
  int64_t m = 0, n = 0, k = 0;
  std::vector<double> lanes_ms;   // of each product, one after the other
  std::vector<double> single_ms;  // over one connection
};

absl::StatusOr<LanesTimes> Measure(const LanesCell& cell) {
  long long m, n, k;
  if (std::sscanf(cell.shape.c_str(), "%lldx%lldx%lld", &m, &n, &k) != 3 || m < 1 || n < 1 ||
      k < 1) {
    return absl::InvalidArgumentError(absl::StrCat("'", cell.shape, "' is not MxNxK"));
  }
  LanesTimes times{.m = m, .n = n, .k = k};
  Matrix a(m, k, DType::kBf16);
  Matrix b(k, n, DType::kBf16);
  Matrix d(m, n, DType::kBf16);
  FillQuickly(a, 1);
  FillQuickly(b, 2);
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

}  // namespace

LanesRow MeasureLanes(const LanesCell& cell) {
  const absl::StatusOr<LanesTimes> times = Measure(cell);
  nlohmann::json json = {{"path", "lanes"},
                         {"transport", cell.server.rfind("unix:", 0) == 0 ? "unix" : "tcp"},
                         {"shape", cell.shape},
                         {"lanes", cell.lanes}};
  if (!times.ok()) {
    json["error"] = times.status().ToString();
    return {.json = json.dump(), .failures = 1};
  }
  const double p50 = Percentile(times->lanes_ms, 0.5);
  const double p99 = Percentile(times->lanes_ms, 0.99);
  const double single = Percentile(times->single_ms, 0.5);
  const double bytes =
      2.0 * static_cast<double>(times->m * times->k + times->k * times->n + times->m * times->n);
  json["calls"] = times->lanes_ms.size();
  json["mbytes"] = bytes / 1e6;
  json["p50_ms"] = p50;
  json["p99_ms"] = p99;
  json["best_ms"] = Percentile(times->lanes_ms, 0);
  json["gbytes_per_s"] = bytes / p50 / 1e6;
  json["single_p50_ms"] = single;
  json["single_best_ms"] = Percentile(times->single_ms, 0);
  json["ratio_to_single"] = single / p50;
  return {
      .json = json.dump(),
      .csv = absl::StrFormat("lanes-%d,%s,%d,%d,%d,1,%.1f,%.1f,%.3f,%.1f,inline,%.3f\n", cell.lanes,
                             std::string(json["transport"]), times->m, times->n, times->k,
                             p50 * 1e3, p99 * 1e3, bytes / p50 / 1e6, 1e3 / p50, single / p50)};
}

}  // namespace tcgemm
