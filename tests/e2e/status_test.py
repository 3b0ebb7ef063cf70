"""The status page in a real browser: the numbers of /metrics, on a desk and on a phone, light and
dark, while the server works, drains and is gone; and /debug/requests."""

import functools
import json
import math
import re
import shutil
import signal
import threading
import unittest

import numpy as np

import browser
import harness

pb = harness.pb
TRACE = "0af7651916cd43dd8448eb211c80319c"


def total(samples, family):
    """All series of a counter or gauge added up."""
    return sum(value for name, value in samples.items() if re.match(rf"{family}(\{{|$)", name))


def expected(samples):
    """{name on the page: number}, of /metrics."""
    launches = samples["tcgemm_batch_size_count"]
    numbers = {
        "calls": total(samples, "tcgemm_requests_total"),
        "launches": total(samples, "tcgemm_launches_total"),
        "mean-batch": samples["tcgemm_batch_size_sum"] / launches if launches else None,
        "flops": total(samples, "tcgemm_flops_total"),
        "kernel-seconds": total(samples, "tcgemm_kernel_seconds_total"),
        "inflight": samples["tcgemm_inflight_requests"],
        "queue-depth": samples["tcgemm_queue_depth"],
        "queue-bytes": samples["tcgemm_queue_bytes"],
        "resident-matrices": samples["tcgemm_resident_matrices"],
        "resident-bytes": samples["tcgemm_resident_bytes"],
        "results with NaN or Inf": samples["tcgemm_nonfinite_outputs_total"] or None,
    }
    for pool in ("pinned", "resident", "shared"):
        numbers[pool] = samples[f'tcgemm_pool_bytes{{pool="{pool}",state="used"}}']
    if launches:
        numbers["mean-tflops"] = numbers["flops"] / numbers["kernel-seconds"] / 1e12
    return numbers


def quantile(buckets, q):
    """PromQL's histogram_quantile of [(bound, values up to it)]."""
    rank, lower, below = q * buckets[-1][1], 0.0, 0.0
    for bound, count in buckets[:-1]:
        if count >= rank:
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return lower


def latency_buckets(samples, method):
    """Of a method's calls since the start, as quantile wants them."""
    pattern = rf'tcgemm_request_duration_seconds_bucket{{method="{method}",le="(.+)"}}'
    return sorted((float(match[1]), value) for name, value in samples.items()
                  if (match := re.fullmatch(pattern, name)))


class Load:
    """Calls of two threads until it is left."""

    def __init__(self, server):
        self.server, self.over = server, threading.Event()
        self.request = harness.random_request(np.random.default_rng(1), 64, 48, 96)
        self.threads = [threading.Thread(target=self._call) for _ in range(2)]

    def _call(self):
        with harness.stub(self.server.address) as stub:
            while not self.over.wait(0.01):
                harness.code_of(lambda: stub.Matmul(self.request, timeout=30))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()


def bad_request(rng):
    bad = harness.random_request(rng, 4, 4, 4)
    bad.a.cols = 5
    return bad


@unittest.skipUnless(shutil.which("chromium") and shutil.which("chromedriver"),
                     "there is no chromium with a chromedriver (Ubuntu has none as a package)")
class StatusPageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(browser.Browser())

    def open(self, server, size=None, scheme="light"):
        self.browser.complaints()  # of the page before
        self.browser.open(f"http://{server.metrics_address}/", size, scheme)
        self.wait_state("ready")

    def tearDown(self):
        self.browser.driver.get("about:blank")  # asks no server that has gone

    def wait_state(self, state):
        harness.wait_until(lambda: self.browser.text("state") == state, what=state)

    def wait_answers(self, count):
        """Until the page shows so many more; by then another has come, perhaps not shown yet."""
        def answers():
            return self.browser.run("""return performance.getEntriesByType("resource").filter(
                (entry) => entry.name.endsWith("/api/status") && entry.responseEnd).length""")

        wanted = answers() + count + 1
        harness.wait_until(lambda: answers() >= wanted, pause=0.1, what="answers to the page")

    def check_numbers(self, samples):
        shown = self.browser.numbers()
        for name, value in expected(samples).items():
            if value is None:
                self.assertIsNone(shown.get(name, (None,))[0], name)
            else:
                self.assertAlmostEqual(shown[name][0], value, delta=abs(value) * 1e-12, msg=name)
        return shown

    def test_after_the_load_the_numbers_are_those_of_the_metrics(self):
        rng = np.random.default_rng(5)
        with harness.Server("--resident-bytes=16MiB") as server:
            self.open(server)
            self.assertEqual(self.browser.text("no-calls"), "No call has ended yet.")
            self.check_numbers(server.metrics())
            with harness.stub(server.address) as stub:
                kept = harness.random_request(rng, 32, 32, 32)
                kept.output.handle = "kept"
                stub.Matmul(kept, timeout=30)
                nan = harness.random_request(rng, 4, 4, 4)
                nan.a.inline = b"\xc0\x7f" * 16
                stub.Matmul(nan, timeout=30)
                harness.code_of(lambda: stub.Matmul(bad_request(rng), timeout=30))
                for size in range(1, 1200):
                    stub.Matmul(harness.random_request(rng, 1 + size % 37, 5, 6), timeout=30)
                stub.ListMatrices(pb.ListMatricesRequest())
            harness.wait_until(lambda: server.metrics()["tcgemm_inflight_requests"] == 0)
            self.wait_answers(2)
            samples = server.metrics()
            shown = self.check_numbers(samples)
            self.assertEqual(shown["calls"], (1203, "1,203"))
            self.assertEqual(shown["resident-matrices"], (1, "1"))
            self.assertEqual(shown["results with NaN or Inf"], (1, "1"))
            methods = self.browser.run(browser.METHODS)
            self.assertEqual(sorted(methods), ["ListMatrices", "Matmul"])
            self.assertEqual(methods["Matmul"][:2], [1201, 1])
            for method, (_, _, *times) in methods.items():
                buckets = latency_buckets(samples, method)
                for q, shown_time in zip((0.5, 0.9, 0.99), times):
                    self.assertAlmostEqual(shown_time, quantile(buckets, q), places=12)
            self.assertIn("1 INVALID_ARGUMENT", self.browser.text("methods"))
            build = next(name for name in samples if name.startswith("tcgemm_build_info"))
            for label in ("version", "commit", "backend"):
                value = re.search(rf'{label}="([^"]*)"', build)[1]
                self.assertIn(value, self.browser.text("about"))
            self.assertEqual(self.browser.text("device").strip(), server.device)
            self.assertEqual(self.browser.complaints(), [])

    def test_under_load_the_numbers_lie_between_two_scrapes(self):
        with harness.Server() as server:
            self.open(server)
            with Load(server):
                for _ in range(3):
                    before = expected(server.metrics())
                    self.wait_answers(2)  # the second was asked for after the scrape
                    shown = self.browser.numbers()
                    after = expected(server.metrics())
                    for name in ("calls", "launches", "flops", "kernel-seconds"):
                        self.assertLess(before[name], shown[name][0], name)
                        self.assertLessEqual(shown[name][0], after[name], name)
                self.check_live()
                for line in ("rate", "latency", "tflops"):
                    path = self.browser.run("""return document.querySelector(
                        `#${arguments[0]}-line .line`).getAttribute("d")""", line)
                    self.assertRegex(path, r"^M[\d.]+ [\d.]+(L[\d.]+ [\d.]+){3,}", line)
            # Nothing to tell a speed from: not the last one for ever.
            harness.wait_until(lambda: self.browser.numbers()["tflops"] == (None, "–"),
                               what="no speed")
            self.assertEqual(self.browser.value("rate"), 0)
            self.assertEqual(self.browser.complaints(), [])

    def check_live(self):
        """Rates and means against the two answers that the page made them of."""
        first, last, shown = self.browser.live()
        seconds = last["time"] - first["time"]
        self.assertGreater(seconds, 4)
        self.assertLess(seconds, 8)

        def grown(*path):
            values = [functools.reduce(lambda at, key: at[key], path, answer)
                      for answer in (first, last)]
            return values[1] - values[0]

        launches, kernel = grown("batch", "launches"), grown("kernel_seconds")
        buckets = [grown("latency_seconds", "by_method", "Matmul", "cumulative", i)
                   for i in range(23)]
        bounds = [*last["latency_seconds"]["bounds"], math.inf]
        wanted = {
            "rate": grown("requests", "total") / seconds,
            "failed-rate": 0,
            "launch-rate": launches / seconds,
            "live-batch": grown("batch", "requests") / launches,
            "tflops": grown("flops") / kernel / 1e12,
            "busy": kernel / seconds,
            "cores": grown("process", "cpu_seconds") / seconds,
            "latency": quantile(list(zip(bounds, buckets)), 0.5),
            "latency-p90": quantile(list(zip(bounds, buckets)), 0.9),
            "latency-p99": quantile(list(zip(bounds, buckets)), 0.99),
        }
        for stage in ("receive", "queue", "kernel", "send"):
            wanted[stage] = (grown("stage_seconds", stage, "sum")
                             / grown("stage_seconds", stage, "count"))
        for name, value in wanted.items():
            self.assertAlmostEqual(shown[name][0], value, delta=abs(value) * 1e-9, msg=name)
            if name != "failed-rate":
                self.assertGreater(value, 0, name)

    def test_both_themes_on_a_desk_and_on_a_phone(self):
        grounds = {}
        with harness.Server() as server, Load(server), harness.stub(server.address) as stub:
            for _ in range(3):
                harness.code_of(lambda: stub.Matmul(bad_request(np.random.default_rng(1))))
            harness.code_of(lambda: stub.DeleteMatrix(pb.DeleteMatrixRequest(handle="none")))
            for size in (browser.DESK, browser.PHONE):
                for scheme in ("light", "dark"):
                    self.open(server, size, scheme)
                    self.wait_answers(2)
                    seen, pale = self.browser.run(browser.PALE)
                    self.assertGreater(seen, 50)
                    self.assertEqual(pale, [])
                    limit, width, wide = self.browser.run(browser.WIDE)
                    self.assertEqual((width, wide), (limit, []))
                    if size["mobile"]:  # a desk's window has a scroll bar
                        self.assertEqual(width, 390)
                    grounds[scheme] = self.browser.run(
                        "return getComputedStyle(document.body).backgroundColor")
                    self.assertEqual(self.browser.complaints(), [])
        self.assertNotEqual(grounds["light"], grounds["dark"])

    def test_a_server_that_drains_is_gone_and_comes_back(self):
        with harness.Server("--drain-delay=20s") as server:
            self.open(server, browser.PHONE)
            address = server.metrics_address
            server.signal(signal.SIGTERM)
            self.wait_state("draining")
            self.assertIn("shutting down", self.browser.text("trouble-text"))
            self.assertEqual(self.browser.complaints(), [])
            server.process.kill()
            self.wait_state("no answer")
            self.assertRegex(self.browser.text("trouble-text"),
                             r"^No answer since \d\d:\d\d:\d\d\. The numbers are from then\.$")
            harness.wait_until(
                lambda: re.search(r"\(\d+ s ago\)", self.browser.text("trouble-ago")))
            self.assertIn("no answer", self.browser.driver.title)
            self.assertEqual(self.browser.run(browser.WIDE)[2], [])
            self.assertEqual(self.browser.run("return document.body.dataset.stale"), "")
        self.browser.complaints()  # of connections that were refused
        with harness.Server(f"--metrics-listen={address}"):
            self.wait_state("ready")
            self.assertTrue(self.browser.run("return document.getElementById('trouble').hidden"))
            self.assertEqual(self.browser.value("calls"), 0)
            self.wait_answers(2)
            self.assertEqual([entry for entry in self.browser.complaints()
                              if "ERR_CONNECTION" not in entry["message"]], [])


class DebugRequestsTest(unittest.TestCase):
    def test_slow_and_failed_calls(self):
        rng = np.random.default_rng(3)
        with harness.Server("--slow-request=0s") as server, harness.stub(server.address) as stub:
            stub.Matmul(harness.random_request(rng, 5, 6, 7), timeout=30,
                        metadata=[("traceparent", f"00-{TRACE}-b7ad6b7169203331-01")])
            harness.code_of(lambda: stub.Matmul(
                bad_request(rng), timeout=30, metadata=[("authorization", "Bearer hush")]))
            calls = harness.wait_until(lambda: self.ended(server, 2))
            text = server.get("/debug/requests")[1]
        slow, = calls["slow"]["calls"]
        self.assertEqual((slow["method"], slow["code"], slow["caller"], slow["trace_id"]),
                         ("Matmul", "OK", "anonymous", TRACE))
        self.assertEqual((slow["m"], slow["n"], slow["k"]), (5, 6, 7))
        self.assertGreater(slow["stages_ms"]["kernel"], 0)
        self.assertLess(sum(slow["stages_ms"].values()), slow["duration_ms"] * 1.01)
        failed, = calls["failed"]["calls"]
        self.assertEqual((failed["method"], failed["code"]), ("Matmul", "INVALID_ARGUMENT"))
        self.assertIn("a", failed["message"])
        for part in (TRACE, "INVALID_ARGUMENT", failed["message"], "m 5, n 6, k 7"):
            self.assertIn(part, text)
        for secret in ("hush", "Bearer"):
            self.assertNotIn(secret, text + json.dumps(calls))

    @staticmethod
    def ended(server, count):
        calls = json.loads(server.get("/debug/requests?format=json")[1])
        return calls if calls["slow"]["count"] + calls["failed"]["count"] == count else None

    def test_by_default_a_quick_answer_is_not_kept(self):
        rng = np.random.default_rng(3)
        with harness.Server() as server, harness.stub(server.address) as stub:
            for _ in range(20):
                stub.Matmul(harness.random_request(rng, 5, 6, 7), timeout=30)
            harness.code_of(lambda: stub.Matmul(bad_request(rng), timeout=30))
            calls = harness.wait_until(lambda: self.ended(server, 1))
            self.assertEqual(calls["failed"]["count"], 1)

    def test_it_can_be_turned_off(self):
        with harness.Server("--debug-pages=off") as server:
            for query in ("", "?format=json"):
                code, text = server.get("/debug/requests" + query)
                self.assertEqual((code, text.count("\n")), (403, 1))
                self.assertIn("--debug-pages", text)
            self.assertIs(json.loads(server.get("/api/status")[1])["debug_requests"], False)


if __name__ == "__main__":
    harness.main()
