"""The metrics port: every series at 0 before the first call, promtool content, counts that agree."""

import re
import subprocess
import unittest

import numpy as np

import harness

# interface: name → labels. Histograms are listed by their base name.
SERIES = {
    "tcgemm_requests_total": {"method", "code"},
    "tcgemm_request_duration_seconds": {"method"},
    "tcgemm_stage_duration_seconds": {"stage"},
    "tcgemm_queue_depth": set(),
    "tcgemm_queue_bytes": set(),
    "tcgemm_inflight_requests": set(),
    "tcgemm_rejected_total": {"reason"},
    "tcgemm_cancelled_total": {"stage"},
    "tcgemm_batch_size": set(),
    "tcgemm_launches_total": {"kernel"},
    "tcgemm_coalesced_requests_total": set(),
    "tcgemm_flops_total": {"device"},
    "tcgemm_kernel_seconds_total": {"device"},
    "tcgemm_transfer_bytes_total": {"direction"},
    "tcgemm_resident_matrices": set(),
    "tcgemm_resident_bytes": set(),
    "tcgemm_pool_bytes": {"pool", "state"},
    "tcgemm_tensor_map_cache_total": {"result"},
    "tcgemm_verification_total": {"result"},
    "tcgemm_nonfinite_outputs_total": set(),
    "tcgemm_device_errors_total": {"kind"},
    "tcgemm_device_healthy": {"device"},
    "tcgemm_certificate_expiry_timestamp_seconds": set(),
    "tcgemm_certificate_reloads_total": {"result"},
    # Without a GPU; with one, tests/e2e/gpu_telemetry_test.py.
    "tcgemm_gpu_telemetry_up": set(),
    "tcgemm_gpu_ecc_errors_total": {"kind"},
    "tcgemm_gpu_xid_errors_total": set(),
    "tcgemm_gpu_last_xid": set(),
    "tcgemm_ready": set(),
    "tcgemm_draining": set(),
    "tcgemm_build_info": {"version", "commit", "cuda", "backend"},
    "process_resident_memory_bytes": set(),
    "process_cpu_seconds_total": set(),
    "process_open_fds": set(),
    "process_max_fds": set(),
    "tcgemm_connections_refused_total": set(),
    "process_start_time_seconds": set(),
}
# Not zero on an idle server. The self-test ran before, and counts as no request.
NONZERO = {"tcgemm_pool_bytes", "tcgemm_device_healthy", "tcgemm_ready", "tcgemm_build_info",
           "process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds",
           "process_max_fds", "process_start_time_seconds"}


def parse(name):
    """'x_bucket{a="b",le="1"}' → ('x', {'a'})."""
    base, _, labels = name.partition("{")
    found = set(re.findall(r'(\w+)="', labels))
    for suffix in ("_bucket", "_sum", "_count"):
        if base.removesuffix(suffix) in SERIES and base not in SERIES:
            base = base.removesuffix(suffix)
    return base, found - {"le"}


class MetricsTest(unittest.TestCase):
    def test_every_series_exists_at_zero_before_the_first_call(self):
        with harness.Server() as server:
            samples = server.metrics()
        seen = {}
        for name, value in samples.items():
            base, labels = parse(name)
            seen.setdefault(base, set()).update(labels)
            if base not in NONZERO:
                self.assertEqual(value, 0, name)
        self.assertEqual(seen, SERIES)

    def test_promtool_accepts_it(self):
        with harness.Server() as server:
            text = server.get("/metrics")[1]
        result = subprocess.run(["promtool", "check", "metrics"], input=text, text=True,
                                capture_output=True, timeout=30, check=False)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))

    def test_counts_agree_with_the_client(self):
        rng = np.random.default_rng(5)
        with harness.Server("--max-batch=1") as server, harness.stub(server.address) as stub:
            for _ in range(10):
                stub.Matmul(harness.random_request(rng, 16, 24, 32), timeout=30)
            bad = harness.random_request(rng, 4, 4, 4)
            bad.a.cols = 5
            harness.code_of(lambda: stub.Matmul(bad, timeout=30))
            nan = harness.random_request(rng, 4, 4, 4)
            nan.a.inline = b"\xc0\x7f" * 16
            stub.Matmul(nan, timeout=30)
            # A call is counted when gRPC has let go of it, a moment after the client's answer.
            harness.wait_until(lambda: sum(harness.counted(server.metrics()).values()) == 12)
            samples = server.metrics()
        self.assertEqual(harness.counted(samples), {"OK": 11, "INVALID_ARGUMENT": 1})
        self.assertEqual(samples['tcgemm_request_duration_seconds_count{method="Matmul"}'], 12)
        launches = sum(v for k, v in samples.items() if k.startswith("tcgemm_launches_total"))
        self.assertEqual(launches, 11)
        flops = 10 * 2 * 16 * 24 * 32 + 2 * 4**3
        self.assertEqual(samples['tcgemm_flops_total{device="cpu"}'], flops)
        self.assertGreater(samples['tcgemm_kernel_seconds_total{device="cpu"}'], 0)
        self.assertEqual(samples["tcgemm_nonfinite_outputs_total"], 1)
        self.assertEqual(samples['tcgemm_stage_duration_seconds_count{stage="kernel"}'], 11)
        self.assertEqual(samples['tcgemm_stage_duration_seconds_count{stage="send"}'], 11)
        self.assertEqual(samples["tcgemm_inflight_requests"], 0)

    def test_health_pages(self):
        with harness.Server() as server:
            self.assertEqual(server.get("/healthz")[0], 200)
            self.assertEqual(server.get("/readyz")[0], 200)
            self.assertEqual(server.get("/nonsense")[0], 404)
            self.assertEqual(server.metrics()["tcgemm_ready"], 1)


if __name__ == "__main__":
    harness.main()
