"""SIGTERM under load: no admitted call fails."""

import random
import re
import signal
import subprocess
import threading
import time
import unittest

import grpc
import numpy as np

import harness

ROUNDS = 50


class Load:
    """Threads that call until told to stop, and count what came back."""

    def __init__(self, address, threads=4):
        self.ok = 0
        self.codes = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        rng = np.random.default_rng(1)
        self._requests = [harness.random_request(rng, m, 96, 64) for m in (1, 33, 128, 300)]
        self._threads = [threading.Thread(target=self._run, args=(address, i))
                         for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self, address, index):
        with harness.stub(address, [("grpc.enable_retries", 0)]) as stub:
            while not self._stop.is_set():
                code = harness.code_of(
                    lambda: stub.Matmul(self._requests[index % 4], timeout=20))
                with self._lock:
                    self.codes[code] = self.codes.get(code, 0) + 1
                if code == grpc.StatusCode.UNAVAILABLE:
                    return

    def finish(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.codes


def totals(server):
    """(admitted, completed) of the last log line."""
    last = server.log().strip().splitlines()[-1]
    match = re.search(r"admitted\D*(\d+)\D+completed\D*(\d+)", last)
    return int(match[1]), int(match[2])


class DrainTest(unittest.TestCase):
    def test_fifty_times_under_load_with_a_watcher(self):
        chance = random.Random(42)
        for round_number in range(ROUNDS):
            with harness.Server("--drain-delay=100ms", "--pinned-bytes=64MiB",
                                "--queue-bytes=64MiB", "--max-message-bytes=16MiB",
                                unix=True) as server, \
                    harness.health_stub(server.address) as health:
                watch = health.Watch(harness.health_pb2.HealthCheckRequest())
                self.assertEqual(next(watch).status, 1)
                load = Load(server.unix if round_number % 2 else server.address)
                time.sleep(chance.uniform(0, 0.15))
                server.signal()
                self.assertEqual(next(watch).status, 2)  # before anything is refused
                code = server.wait(30)
                codes = load.finish()
                admitted, completed = totals(server)
                with self.subTest(round=round_number, codes=codes):
                    self.assertEqual(code, 0, server.log())
                    self.assertLessEqual(set(codes), {grpc.StatusCode.OK,
                                                      grpc.StatusCode.UNAVAILABLE})
                    self.assertEqual(admitted, completed)
                    self.assertEqual(completed, codes.get(grpc.StatusCode.OK, 0))

    def test_during_the_delay_it_still_accepts(self):
        rng = np.random.default_rng(2)
        request = harness.random_request(rng, 8, 8, 8)
        with harness.Server("--drain-delay=2s") as server, harness.stub(server.address) as stub, \
                harness.health_stub(server.address) as health:
            server.signal()
            harness.wait_until(lambda: server.get("/readyz")[0] == 503)
            status = health.Check(harness.health_pb2.HealthCheckRequest(), timeout=10).status
            self.assertEqual(status, 2)
            self.assertEqual(server.get("/healthz")[0], 200)
            self.assertEqual(server.metrics()["tcgemm_draining"], 1)
            stub.Matmul(request, timeout=10)
            self.assertTrue(stub.GetServerInfo(harness.pb.GetServerInfoRequest(),
                                               timeout=10).draining)
            start = time.monotonic()
            server.signal()  # hurries: the rest of the delay is skipped
            self.assertEqual(server.wait(), 0)
            self.assertLess(time.monotonic() - start, 1.0)

    def test_stuck_client_makes_it_exit_6(self):
        options = [("grpc.max_receive_message_length", -1)]
        rng = np.random.default_rng(3)
        slow = harness.random_request(rng, 4096, 4096, 8192)  # 2 s on a fast core
        with harness.Server("--drain-timeout=300ms", "--cpu-backend=plain", "--cpu-threads=1",
                            "--max-message-bytes=192MiB", "--pinned-bytes=256MiB",
                            "--queue-bytes=192MiB") as server, \
                harness.stub(server.address, options) as stub:
            running = stub.Matmul.future(slow, timeout=120)
            harness.wait_until(lambda: server.metrics()["tcgemm_inflight_requests"] == 1)
            time.sleep(0.2)
            server.signal(signal.SIGTERM)
            try:
                code = server.wait(90)
            except subprocess.TimeoutExpired:
                self.fail("the drain did not end: " + server.log())
            self.assertEqual(code, 6, server.log())
            self.assertIsNotNone(running.exception(timeout=30))


if __name__ == "__main__":
    harness.main()
