"""What a GPU tells about itself reaches /metrics, and nothing that it does to us reaches the calls."""

import subprocess
import time
import unittest

import numpy as np

import fake_gpu
import harness

MEASURED = {"tcgemm_gpu_utilization_ratio": 0.37, "tcgemm_gpu_memory_used_bytes": 5e9,
            "tcgemm_gpu_memory_total_bytes": 150e9, "tcgemm_gpu_power_watts": 300.5,
            "tcgemm_gpu_power_limit_watts": 700, "tcgemm_gpu_sm_clock_hertz": 1755e6,
            "tcgemm_gpu_sm_clock_max_hertz": 1980e6, "tcgemm_gpu_temperature_celsius": 41}
UP = "tcgemm_gpu_telemetry_up"


class GpuTelemetryTest(unittest.TestCase):
    def setUp(self):
        self.request = harness.random_request(np.random.default_rng(7), 8, 8, 8)

    def wait_for(self, server, name, value):
        harness.wait_until(lambda: server.metrics().get(name) == value,
                           what=f"{name} {value}: {server.metrics()}")

    def test_without_a_gpu_the_server_says_nothing_alarming(self):
        with harness.Server() as server:
            with harness.stub(server.address) as stub:
                stub.Matmul(self.request, timeout=30)
            samples = server.metrics()
            self.assertEqual(server.stop(), 0)
            self.assertNotRegex(server.log(), r"(?i)telemetry|nvml|warning|error")
        gpu = {name: value for name, value in samples.items() if name.startswith("tcgemm_gpu_")}
        self.assertEqual(gpu, {UP: 0, "tcgemm_gpu_xid_errors_total": 0, "tcgemm_gpu_last_xid": 0,
                               'tcgemm_gpu_ecc_errors_total{kind="corrected"}': 0,
                               'tcgemm_gpu_ecc_errors_total{kind="uncorrected"}': 0})

    def test_a_gpu_without_nvml_is_worth_one_line(self):
        with harness.Server(env={"TCGEMM_FAILPOINT": "nvml:/no/such/library.so"}) as server:
            harness.wait_until(lambda: "no GPU telemetry" in server.log())
            self.assertEqual(server.metrics()[UP], 0)
            self.assertEqual(server.stop(), 0)
            lines = [line for line in server.log().splitlines() if "telemetry:" in line]
        self.assertEqual(len(lines), 1, lines)
        self.assertIn(" info ", lines[0])
        self.assertIn("/no/such/library.so", lines[0])

    def test_a_healthy_gpu(self):
        with fake_gpu.FakeGpu() as gpu, harness.Server(env=gpu.env) as server:
            self.wait_for(server, UP, 1)
            samples = server.metrics()
            for name, value in MEASURED.items():
                self.assertAlmostEqual(samples[name], value, msg=name)
            active = {name for name, value in samples.items()
                      if name.startswith("tcgemm_gpu_throttle_active") and value}
            self.assertEqual(active, {'tcgemm_gpu_throttle_active{reason="sw_power_cap"}'})
            text = server.get("/metrics")[1]
            checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True,
                                     capture_output=True, timeout=30, check=False)
            self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""))
            self.assertEqual(server.stop(), 0)

    def test_a_field_that_is_not_supported_is_not_there(self):
        with fake_gpu.FakeGpu("answer nvmlDeviceGetUtilizationRates 3 0") as gpu, \
                harness.Server(env=gpu.env) as server:
            self.wait_for(server, UP, 1)
            samples = server.metrics()
        missing = {name for name in MEASURED if name not in samples}
        self.assertEqual(missing, {"tcgemm_gpu_utilization_ratio"})

    def test_a_gpu_that_falls_off_its_bus(self):
        with fake_gpu.FakeGpu() as gpu, harness.Server(env=gpu.env) as server, \
                harness.stub(server.address) as stub:
            self.wait_for(server, UP, 1)
            gpu.script("xid 79", "answer nvmlDeviceGetMemoryInfo 15 0",
                       "answer nvmlDeviceGetTotalEccErrors.1 0 2")
            self.wait_for(server, UP, 0)
            samples = server.metrics()
            self.assertEqual(samples["tcgemm_gpu_xid_errors_total"], 1)
            self.assertEqual(samples["tcgemm_gpu_last_xid"], 79)
            self.assertNotIn("tcgemm_gpu_temperature_celsius", samples)
            stub.Matmul(self.request, timeout=30)
            self.assertEqual(server.stop(), 0)
            self.assertEqual(server.log().count("no GPU telemetry: NVML: "), 1, server.log())

    def test_ecc_errors_from_before_are_not_new(self):
        with fake_gpu.FakeGpu("answer nvmlDeviceGetTotalEccErrors.1 0 5") as gpu, \
                harness.Server(env=gpu.env) as server:
            self.wait_for(server, UP, 1)
            name = 'tcgemm_gpu_ecc_errors_total{kind="uncorrected"}'
            self.assertEqual(server.metrics()[name], 0)
            gpu.script("answer nvmlDeviceGetTotalEccErrors.1 0 7")
            self.wait_for(server, name, 2)

    def test_a_driver_that_hangs_at_the_start_holds_up_nobody(self):
        for function in ("dlopen", "nvmlInit_v2"):
            with self.subTest(function), fake_gpu.FakeGpu(f"hang {function}") as gpu:
                start = time.monotonic()
                with harness.Server(env=gpu.env) as server, \
                        harness.stub(server.address) as stub:
                    self.assertLess(time.monotonic() - start, 15, "2 s of them for NVML")
                    self.assertEqual(server.metrics()[UP], 0)
                    stub.Matmul(self.request, timeout=30)
                    start = time.monotonic()
                    self.assertEqual(server.stop(), 0)
                    self.assertLess(time.monotonic() - start, 5)
                    self.assertEqual(server.log().count("no GPU telemetry: NVML has not answered"),
                                     1, server.log())

    def test_a_gpu_that_hangs_holds_up_nobody(self):
        with fake_gpu.FakeGpu() as gpu, harness.Server(env=gpu.env) as server, \
                harness.stub(server.address) as stub:
            self.wait_for(server, UP, 1)
            gpu.script("hang nvmlDeviceGetPowerUsage")
            self.wait_for(server, UP, 0)
            start = time.monotonic()
            samples = server.metrics()
            self.assertLess(time.monotonic() - start, 2)
            self.assertNotIn("tcgemm_gpu_power_watts", samples)
            stub.Matmul(self.request, timeout=30)
            start = time.monotonic()
            self.assertEqual(server.stop(), 0)
            self.assertLess(time.monotonic() - start, 5)


if __name__ == "__main__":
    harness.main()
