#include "client/cli/bench_report.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/duration.h"

namespace tcgemm::client {
namespace {

struct NamedPercent {
  const char* name;
  const char* json_name;
  double percent;
};
constexpr NamedPercent kPercentiles[] = {
    {"p50", "p50", 50}, {"p90", "p90", 90}, {"p99", "p99", 99}, {"p99.9", "p99_9", 99.9}};

std::string CodeText(absl::StatusCode code) { return absl::StatusCodeToString(code); }

double MeanBatchedWith(const LoadReport& load) {
  if (load.succeeded == 0) return 0;
  return static_cast<double>(load.batched_with_sum) / static_cast<double>(load.succeeded);
}

std::string Head(const BenchReport& report) {
  std::string text = absl::StrFormat("%s (%s): %dx%dx%d %s, %s result\n", report.server,
                                     report.device.empty() ? "device unknown" : report.device,
                                     report.shape.m, report.shape.n, report.shape.k, report.layout,
                                     std::string(DTypeName(report.output)));
  const std::string loop =
      report.rate > 0 ? absl::StrFormat("open loop, %g requests/s", report.rate) : "closed loop";
  absl::StrAppendFormat(&text, "%s, %s, %d clients on %d connections, %.2f s\n\n", report.path,
                        loop, report.clients, report.connections,
                        std::chrono::duration<double>(report.load.elapsed).count());
  return text;
}

// What makes the figures above it less than they seem.
std::string Warnings(const BenchReport& report) {
  const LoadReport& load = report.load;
  std::string text;
  for (const auto& [code, count] : load.failures) {
    absl::StrAppendFormat(&text, "failed      %d %s\n", count, CodeText(code));
  }
  if (load.unsent > 0) {
    absl::StrAppendFormat(&text,
                          "unsent      %d: all clients were busy to the end; the percentiles are "
                          "lower bounds\n",
                          load.unsent);
  }
  if (load.gave_up) absl::StrAppend(&text, "gave up: too many failures in a row\n");
  return text;
}

}  // namespace

ExitCode BenchReport::exit_code() const {
  if (proof.has_value() && !proof->ok) return ExitCode::kWrongResult;
  ExitCode code = ExitCode::kRight;
  if (load.succeeded > 0) return code;
  for (const auto& [failure, count] : load.failures) {
    code = Combine(code, ExitCodeOf(absl::Status(failure, "")));
  }
  // Not one call was even sent.
  return load.sent == 0 ? ExitCode::kOtherStatus : code;
}

double BenchReport::requests_per_second() const {
  const double seconds = std::chrono::duration<double>(load.elapsed).count();
  return seconds > 0 ? static_cast<double>(load.succeeded) / seconds : 0;
}

double BenchReport::sent_gbytes_per_second() const {
  const auto elements = static_cast<double>(shape.k) * static_cast<double>(shape.m + shape.n);
  return requests_per_second() * elements * static_cast<double>(DTypeSize(DType::kBf16)) / 1e9;
}

double BenchReport::received_gbytes_per_second() const {
  const auto elements = static_cast<double>(shape.m) * static_cast<double>(shape.n);
  return requests_per_second() * elements * static_cast<double>(DTypeSize(output)) / 1e9;
}

double BenchReport::tflops() const {
  return requests_per_second() * 2 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
         static_cast<double>(shape.k) / 1e12;
}

std::string BenchTable(const BenchReport& report) {
  const LoadReport& load = report.load;
  std::string text = Head(report);
  absl::StrAppendFormat(&text, "requests    %d sent, %d answered\n", load.sent, load.succeeded);
  absl::StrAppend(&text, Warnings(report));
  absl::StrAppendFormat(&text, "rate        %.1f requests/s, %.4g TFLOPS\n",
                        report.requests_per_second(), report.tflops());
  absl::StrAppendFormat(&text, "bytes       %.4g GB/s sent, %.4g GB/s received\n",
                        report.sent_gbytes_per_second(), report.received_gbytes_per_second());
  absl::StrAppend(&text, "latency ms ");
  for (const NamedPercent& p : kPercentiles) {
    absl::StrAppendFormat(&text, " %s %.3f ", p.name,
                          Milliseconds(load.latency.Percentile(p.percent)));
  }
  absl::StrAppendFormat(&text, " max %.3f%s\n", Milliseconds(load.latency.max()),
                        report.rate > 0 ? "  (from when each was due)" : "");
  absl::StrAppend(&text, "stages ms  ");
  for (size_t i = 0; i < kStageNames.size(); ++i) {
    absl::StrAppendFormat(&text, " %s %.3f ", kStageNames[i],
                          Milliseconds(load.stages[i].Percentile(50)));
  }
  absl::StrAppendFormat(&text, " (medians)\nbatch       with %.2f others on average\n",
                        MeanBatchedWith(load));
  if (report.rate > 0) {
    absl::StrAppendFormat(&text, "sent late   by at most %.3f ms\n",
                          Milliseconds(load.max_send_delay));
  }
  if (!report.proof.has_value()) return text + "\nno result to check";
  return absl::StrCat(text, "\n", report.proof->ok ? "right" : "WRONG",
                      ", one result: ", report.proof->text);
}

std::string BenchJson(const BenchReport& report) {
  const LoadReport& load = report.load;
  nlohmann::json latency = {{"max", Milliseconds(load.latency.max())}};
  for (const NamedPercent& p : kPercentiles) {
    latency[p.json_name] = Milliseconds(load.latency.Percentile(p.percent));
  }
  nlohmann::json stages;
  for (size_t i = 0; i < kStageNames.size(); ++i) {
    stages[kStageNames[i]] = Milliseconds(load.stages[i].Percentile(50));
  }
  nlohmann::json errors = nlohmann::json::object();
  for (const auto& [code, count] : load.failures) errors[CodeText(code)] = count;
  nlohmann::json proof;  // null
  if (report.proof.has_value()) {
    const double ratio = report.proof->max_error_ratio;  // JSON has no infinity
    proof = {{"ok", report.proof->ok},
             {"max_error_ratio", std::isfinite(ratio) ? ratio : std::numeric_limits<double>::max()},
             {"detail", report.proof->text}};
  }
  const nlohmann::json json = {{"server", report.server},
                               {"device", report.device},
                               {"m", report.shape.m},
                               {"n", report.shape.n},
                               {"k", report.shape.k},
                               {"layout", report.layout},
                               {"output", std::string(DTypeName(report.output))},
                               {"path", report.path},
                               {"loop", report.rate > 0 ? "open" : "closed"},
                               {"rate", report.rate},
                               {"clients", report.clients},
                               {"connections", report.connections},
                               {"warmup_requests", report.warmup_requests},
                               {"sent", load.sent},
                               {"succeeded", load.succeeded},
                               {"unsent", load.unsent},
                               {"gave_up", load.gave_up},
                               {"errors", errors},
                               {"elapsed_s", std::chrono::duration<double>(load.elapsed).count()},
                               {"latency_ms", latency},
                               {"max_send_delay_ms", Milliseconds(load.max_send_delay)},
                               {"requests_per_s", report.requests_per_second()},
                               {"sent_gbytes_per_s", report.sent_gbytes_per_second()},
                               {"received_gbytes_per_s", report.received_gbytes_per_second()},
                               {"tflops", report.tflops()},
                               {"mean_batched_with", MeanBatchedWith(load)},
                               {"stages_p50_ms", stages},
                               {"check", proof},
                               {"ok", report.exit_code() == ExitCode::kRight}};
  return json.dump();
}

}  // namespace tcgemm::client
