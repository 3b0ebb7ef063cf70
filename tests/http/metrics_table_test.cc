// The whole table: no series missing, none too many, all at 0 before the first event.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "server/http/metrics.h"

namespace tcgemm {
namespace {

using Values = std::vector<std::string>;

const Values kMethods = {"Matmul",         "GetServerInfo", "MatmulStream", "UploadMatrix",
                         "DownloadMatrix", "ListMatrices",  "DeleteMatrix", "HoldRegion"};
const Values kCodes = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};
const Values kStages = {"receive", "decode", "queue",    "copy_in",
                        "kernel",  "verify", "copy_out", "send"};

// As prometheus-cpp writes them: 16 digits, so 80 µs is "8.000000000000001e-05".
Values LatencyBounds() {
  Values bounds;
  for (int i = 0; i <= 21; ++i) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.16g", std::ldexp(10e-6, i));
    bounds.emplace_back(text);
  }
  bounds.emplace_back("+Inf");
  return bounds;
}

class MetricsTableTest : public ::testing::Test {
 protected:
  // `name` with one label of each of these values.
  void Expect(const std::string& name, const std::string& label, const Values& values) {
    for (const std::string& value : values) {
      expected_.insert(name + "{" + label + "=\"" + value + "\"}");
    }
  }
  // The series of a histogram; `labels` as 'stage="queue"', or empty.
  void ExpectHistogram(const std::string& name, const std::string& labels, const Values& bounds) {
    const std::string braces = labels.empty() ? "" : "{" + labels + "}";
    expected_.insert(name + "_sum" + braces);
    expected_.insert(name + "_count" + braces);
    for (const std::string& bound : bounds) {
      expected_.insert(name + "_bucket{" + labels + (labels.empty() ? "" : ",") + "le=\"" + bound +
                       "\"}");
    }
  }
  void ExpectCalls() {
    for (const std::string& method : kMethods) {
      for (const std::string& code : kCodes) {
        expected_.insert("tcgemm_requests_total{code=\"" + code + "\",method=\"" + method + "\"}");
      }
      ExpectHistogram("tcgemm_request_duration_seconds", "method=\"" + method + "\"", kLatencies);
    }
    for (const std::string& stage : kStages) {
      ExpectHistogram("tcgemm_stage_duration_seconds", "stage=\"" + stage + "\"", kLatencies);
    }
    Expect("tcgemm_cancelled_total", "stage", kStages);
    Expect("tcgemm_rejected_total", "reason",
           {"draining", "not_ready", "inflight", "queue", "memory", "message", "deadline",
            "credentials", "caller"});
  }
  void ExpectDevice() {
    Values kernels;
    for (const KernelId kernel : AllKernels()) kernels.emplace_back(KernelName(kernel));
    Expect("tcgemm_launches_total", "kernel", kernels);
    for (const char* name :
         {"tcgemm_flops_total", "tcgemm_kernel_seconds_total", "tcgemm_device_healthy"}) {
      Expect(name, "device", {"cpu"});
    }
    Expect("tcgemm_transfer_bytes_total", "direction", {"in", "out"});
    Expect("tcgemm_pool_bytes", "pool=\"pinned\",state", {"used", "free"});
    Expect("tcgemm_pool_bytes", "pool=\"resident\",state", {"used", "free"});
    Expect("tcgemm_pool_bytes", "pool=\"shared\",state", {"used", "free"});
    Expect("tcgemm_tensor_map_cache_total", "result", {"hit", "miss"});
    Expect("tcgemm_certificate_reloads_total", "result", {"served", "refused"});
    Expect("tcgemm_verification_total", "result", {"ok", "mismatch", "skipped"});
    Expect("tcgemm_device_errors_total", "kind",
           {"launch", "copy", "event", "self_test", "watchdog"});
    Expect("tcgemm_gpu_ecc_errors_total", "kind", {"corrected", "uncorrected"});
    ExpectHistogram("tcgemm_batch_size", "",
                    {"1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "+Inf"});
  }

  std::set<std::string> expected_ = {"tcgemm_queue_depth",
                                     "tcgemm_queue_bytes",
                                     "tcgemm_inflight_requests",
                                     "tcgemm_coalesced_requests_total",
                                     "tcgemm_resident_matrices",
                                     "tcgemm_resident_bytes",
                                     "tcgemm_certificate_expiry_timestamp_seconds",
                                     "tcgemm_gpu_telemetry_up",
                                     "tcgemm_gpu_xid_errors_total",
                                     "tcgemm_gpu_last_xid",
                                     "tcgemm_ready",
                                     "tcgemm_draining",
                                     "process_open_fds",
                                     "process_max_fds",
                                     "tcgemm_connections_refused_total",
                                     "tcgemm_nonfinite_outputs_total",
                                     "process_cpu_seconds_total",
                                     "process_resident_memory_bytes",
                                     "process_start_time_seconds"};
  const Values kLatencies = LatencyBounds();
  Metrics metrics_{{.version = "1.2.3",
                    .commit = "abc",
                    .cuda = "",
                    .backend = "plain",
                    .device = "cpu",
                    .methods = kMethods}};
};

TEST_F(MetricsTableTest, ExactlyTheTableAndAllOfItZero) {
  ExpectCalls();
  ExpectDevice();
  const std::string build =
      "tcgemm_build_info{backend=\"plain\",commit=\"abc\",cuda=\"\",version=\"1.2.3\"}";
  expected_.insert(build);
  std::set<std::string> found;
  std::istringstream lines(metrics_.Serialize());
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    const std::string series = line.substr(0, space);
    EXPECT_TRUE(found.insert(series).second) << "twice: " << series;
    if (series == build) {
      EXPECT_EQ(line.substr(space + 1), "1");
    } else if (series.rfind("process_", 0) != 0) {
      EXPECT_EQ(line.substr(space + 1), "0") << series;
    }
  }
  EXPECT_THAT(found, ::testing::ContainerEq(expected_));
}

TEST_F(MetricsTableTest, EveryFamilyHasHelpAndAType) {
  int help = 0;
  int type = 0;
  std::istringstream lines(metrics_.Serialize());
  for (std::string line; std::getline(lines, line);) {
    help += line.rfind("# HELP ", 0) == 0;
    type += line.rfind("# TYPE ", 0) == 0;
  }
  EXPECT_EQ(help, 37);
  EXPECT_EQ(type, 37);
}

}  // namespace
}  // namespace tcgemm
