"""Prometheus, with the repository's rules and dashboard, on a live server: every expression has data,
the numbers are those of the client, and faults fire their alerts.

The rules run with shortened durations (watching.SHORT); their thresholds are the real ones.
"""

import contextlib
import json
import math
import re
import socket
import threading
import unittest

import numpy as np

import fake_gpu
import harness
import raw_client
import watching

SIDE = 192
RATE = 50
MAX_INFLIGHT = 32
MAX_FILES = 256
# Not in the text of /metrics: made by Prometheus.
BUILT_IN = {"up", "ALERTS"}


class Bench(threading.Thread):
    """tcgemm-client bench in the background; `report` after join."""

    def __init__(self, server, *flags):
        super().__init__()
        self._args = (server.address, flags)
        self.report = None
        self.start()

    def run(self):
        address, flags = self._args
        done = harness.client("--json", "bench", "--shape", f"{SIDE}x{SIDE}x{SIDE}", *flags,
                              server=address)
        self.report = json.loads(done.stdout)


def selectors(expression):
    """[(metric, {label: [values]})] of an expression, as far as labels are given values."""
    found = []
    for name, labels in re.findall(r"\b((?:[a-z]+:)?(?:tcgemm|process)_[\w:]+|up|ALERTS)\b(?:{([^}]*)})?",
                                   expression):
        values = {label: value.split("|")
                  for label, value in re.findall(r'(\w+)=~?"([^"]*)"', labels)}
        found.append((name, values))
    return found


class DashboardsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # The dashboard of a server with a GPU, wherever this runs.
        cls.gpu = fake_gpu.FakeGpu()
        cls.addClassCleanup(cls.gpu.__exit__)
        cls.server = harness.Server(f"--max-inflight={MAX_INFLIGHT}", "--admission-wait=20s",
                                    "--resident-bytes=16MiB", env=cls.gpu.env,
                                    prefix=["prlimit", f"--nofile={MAX_FILES}:{MAX_FILES}"])
        cls.addClassCleanup(cls.server.__exit__)
        cls.prometheus = watching.Prometheus(cls.server.metrics_address)
        cls.addClassCleanup(cls.prometheus.__exit__)
        cls.rng = np.random.default_rng(17)

    def expressions(self):
        """Every panel's and every rule's, so that each has a sample where it has data."""
        found = watching.panel_expressions()
        for rule in watching.rules(watching.shortened):
            if "record" in rule:
                found.append((rule["record"], rule["expr"]))
            else:
                found.append((rule["alert"], watching.as_condition(rule["expr"])))
        return found

    def test_1_only_metrics_and_labels_that_the_server_exports(self):
        exported = {}  # name → {label: values}
        for name in self.server.metrics():
            base, _, labels = name.partition("{")
            known = exported.setdefault(base, {})
            for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
                known.setdefault(label, set()).add(value)
        records = {rule["record"] for rule in watching.rules() if "record" in rule}
        count = 0
        for where, expression in self.expressions():
            self.assertNotIn("$", expression, where)
            for name, labels in selectors(expression):
                count += 1
                if name in BUILT_IN or name in records:
                    continue
                self.assertIn(name, exported, where)
                for label, values in labels.items():
                    if label in ("job", "instance"):
                        continue
                    for value in values:
                        self.assertIn(value, exported[name].get(label, ()), f"{where}: {label}")
        self.assertGreater(count, 100)
        names = {name for _, expression in self.expressions() for name, _ in selectors(expression)}
        self.assertLessEqual(records, names, "records that nobody reads")

    def test_2_an_idle_server_shows_no_nan_and_no_alert(self):
        self.prometheus.wait_scrapes(4)
        for where, expression in self.expressions():
            for labels, value in self.prometheus.query(expression):
                self.assertTrue(math.isfinite(value), f"{where}: {labels} {value}")
        self.assertEqual(self.prometheus.value("job:tcgemm_failures:ratio5m"), 0)
        self.assertEqual(self.prometheus.value("instance:tcgemm_overload_rejects:ratio5m"), 0)
        self.assertEqual(self.prometheus.firing(), set())

    def test_3_under_load_everything_has_data_and_agrees_with_the_client(self):
        before = self.counters()
        bench = Bench(self.server, "--rate", str(RATE), "--clients", "4", "--warmup", "500ms",
                      "--duration", "21s")
        failed = self.fail_some_calls()
        # The longest shortened durations, an offset and the range before it, are 20 s together, with
        # those of the idle server.
        self.prometheus.wait_scrapes(17)
        self.assertTrue(bench.is_alive())
        self.check_everything_has_data()
        rate = self.prometheus.value('sum(rate(tcgemm_requests_total{code="OK"}[8s]))')
        bench.join()
        report = bench.report
        self.assertTrue(report["ok"], report)
        self.assertEqual(report["errors"], {})
        self.prometheus.wait_scrapes(2)  # so one began after now
        self.check_counts(before, report, failed)
        # Eight seconds hold eight scrapes, so one scrape is an eighth.
        self.assertLess(abs(rate / report["requests_per_s"] - 1), 1 / 8, report)
        self.check_latencies(report)

    def counters(self):
        return {expression: self.prometheus.value(expression) for expression in (
            'tcgemm_requests_total{method="Matmul", code="OK"}',
            'tcgemm_requests_total{method="Matmul", code="INVALID_ARGUMENT"}',
            'tcgemm_request_duration_seconds_count{method="Matmul"}',
            'tcgemm_batch_size_sum', 'tcgemm_flops_total')}

    def fail_some_calls(self):
        """How many calls of Matmul it failed."""
        bad = harness.random_request(self.rng, 4, 4, 4)
        bad.a.cols = 5
        with harness.stub(self.server.address) as stub:
            for _ in range(20):
                code = harness.code_of(lambda: stub.Matmul(bad, timeout=30))
                self.assertEqual(code.name, "INVALID_ARGUMENT")
        return 20

    def check_everything_has_data(self):
        for where, expression in self.expressions():
            samples = self.prometheus.query(expression)
            self.assertTrue(samples, f"{where}: no data from {expression}")
            for labels, value in samples:
                self.assertTrue(math.isfinite(value), f"{where}: {labels} {value}")
        # What fills the dashboard's list of instances.
        instances = self.prometheus.get("label/instance/values", **{"match[]": "tcgemm_build_info"})
        self.assertEqual(instances, [self.server.metrics_address])
        # Each rule was evaluated, by Prometheus itself, without an error.
        for group in self.prometheus.get("rules")["groups"]:
            for rule in group["rules"]:
                self.assertEqual((rule["health"], rule.get("lastError", "")), ("ok", ""), rule)

    def check_counts(self, before, report, failed):
        grown = {name: value - before[name] for name, value in self.counters().items()}
        ok = report["sent"] + report["warmup_requests"]
        self.assertEqual(report["succeeded"], report["sent"])
        self.assertEqual(list(grown.values()),
                         [ok, failed, ok + failed, ok, ok * 2 * SIDE**3], grown)

    def check_latencies(self, report):
        """Buckets double, so a percentile is right within a factor of two; a little more, since the
        server also counts the warm-up."""
        def percentile(p, series, labels):
            return 1e3 * self.prometheus.value(
                f"histogram_quantile({p}, sum by (le) (increase({series}_bucket{labels}[1h])))")

        for stage, client_ms in report["stages_p50_ms"].items():
            if stage == "verify":
                continue
            ms = percentile(0.5, "tcgemm_stage_duration_seconds", f'{{stage="{stage}"}}')
            # Below the first bucket's end, 10 µs, all is one.
            self.assertLess(max(ms, client_ms, 0.01) / max(min(ms, client_ms), 0.01), 2.2,
                            (stage, ms, client_ms))
        # The client sees what the server does, and the way there and back.
        latency = report["latency_ms"]
        median = percentile(0.5, "tcgemm_request_duration_seconds", '{method="Matmul"}')
        self.assertLess(median, 2.2 * latency["p50"] + 1, latency)
        self.assertGreater(2.2 * median + 20, latency["p50"], latency)
        slow = percentile(0.99, "tcgemm_request_duration_seconds", '{method="Matmul"}')
        self.assertTrue(median < slow < 2.2 * latency["max"] + 1, (median, slow, latency))

    def test_4_refused_calls_fire_their_alerts(self):
        alerts = {"TcgemmRejecting", "TcgemmErrorBudgetBurnFast"}
        self.assertEqual(self.prometheus.firing() & alerts, set())
        # Calls whose payload never comes hold every place; those who come too late are refused.
        for _ in range(MAX_INFLIGHT + 4):
            call = raw_client.RawCall(self.server.address)
            self.addCleanup(call.close)
        harness.wait_until(
            lambda: self.server.metrics()["tcgemm_inflight_requests"] == MAX_INFLIGHT,
            what="a full server")
        self.prometheus.wait_scrapes(2)
        refused = 'tcgemm_rejected_total{reason="inflight"}'
        before = self.prometheus.value(refused)
        # For less than the 10 s after which the server gives a place to others.
        bench = Bench(self.server, "--rate", str(RATE), "--clients", "4", "--warmup", "0s",
                      "--duration", "5s")
        self.prometheus.wait_firing(*alerts)
        bench.join()
        self.prometheus.wait_scrapes(2)
        self.assertEqual(self.prometheus.value(refused) - before,
                         bench.report["errors"]["RESOURCE_EXHAUSTED"])

    def test_4_refused_connections_fire_their_alert(self):
        alert = "TcgemmConnectionsRefused"
        self.assertNotIn(alert, self.prometheus.firing())
        host, port = self.server.address.rsplit(":", 1)
        with contextlib.ExitStack() as held:
            for _ in range(MAX_FILES):
                held.enter_context(socket.create_connection((host, int(port)), timeout=10))
            self.prometheus.wait_firing(alert)
            self.prometheus.wait_scrapes(1)
            self.assertEqual(self.prometheus.value("tcgemm_connections_refused_total"),
                             self.server.metrics()["tcgemm_connections_refused_total"])

    def test_5_a_gpu_in_trouble_fires_its_alerts(self):
        alerts = {"TcgemmGpuXid", "TcgemmGpuEccUncorrected", "TcgemmGpuThrottled",
                  "TcgemmGpuTelemetryLost"}
        self.assertEqual(self.prometheus.firing() & alerts, set())
        heat = "answer nvmlDeviceGetCurrentClocksEventReasons 0 64"
        self.gpu.script("xid 79", "answer nvmlDeviceGetTotalEccErrors.1 0 1", heat)
        self.prometheus.wait_firing(*alerts - {"TcgemmGpuTelemetryLost"})
        self.gpu.script("hang nvmlDeviceGetTemperature")
        self.prometheus.wait_firing("TcgemmGpuTelemetryLost")

    def test_6_a_server_that_ends_fires_down(self):
        self.assertNotIn("TcgemmDown", self.prometheus.firing())
        self.assertEqual(self.server.stop(), 0)
        self.prometheus.wait_firing("TcgemmDown")


if __name__ == "__main__":
    harness.main()
