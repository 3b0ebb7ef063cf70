"""Batching and deadlines, seen from outside."""

import statistics
import time
import unittest

import grpc
import numpy as np

import harness


def launches(server):
    return sum(v for k, v in server.metrics().items() if k.startswith("tcgemm_launches_total"))


class BatchingTest(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(17)

    def burst(self, stub, count=64):
        """`count` simultaneous 64³ requests; seconds until the last answer."""
        requests = [harness.random_request(self.rng, 64, 64, 64) for _ in range(count)]
        start = time.monotonic()
        calls = [stub.Matmul.future(r, timeout=60) for r in requests]
        for call in calls:
            call.result()
        return time.monotonic() - start

    def test_64_simultaneous_requests_share_launches(self):
        for max_batch in (16, 64):
            with harness.Server(f"--max-batch={max_batch}", "--max-queue-delay-us=200000") as server:
                with harness.stub(server.address) as stub:
                    self.burst(stub, 4)
                    before = launches(server)
                    self.burst(stub)
                    used = launches(server) - before
            self.assertLessEqual(used, -(-64 // max_batch) + 1)
            self.assertGreaterEqual(used, 64 // max_batch)

    def test_window_bounds_a_lone_request_and_zero_adds_none(self):
        request = harness.random_request(self.rng, 64, 64, 64)
        waits = {}
        for window_us in (0, 100_000):
            with harness.Server(f"--max-queue-delay-us={window_us}") as server:
                with harness.stub(server.address) as stub:
                    stub.Matmul(request, timeout=30)
                    waits[window_us] = [stub.Matmul(request, timeout=30).timings.queue_ns / 1e6
                                        for _ in range(9)]
        self.assertLess(statistics.median(waits[0]), 5)
        self.assertGreater(statistics.median(waits[100_000]), 90)
        self.assertLess(statistics.median(waits[100_000]), 110)

    def test_deadline_behind_a_slow_job_is_kept(self):
        options = [("grpc.max_receive_message_length", -1)]
        # The plain backend takes long enough for this one on any machine.
        slow = harness.random_request(self.rng, 2048, 2048, 4096)
        quick = harness.random_request(self.rng, 64, 64, 64)
        with harness.Server("--cpu-backend=plain", "--cpu-threads=1", "--max-batch=1") as server, \
                harness.stub(server.address, options) as stub, \
                harness.stub(server.address) as other:
            other.Matmul(quick, timeout=30)
            before = launches(server)
            running = stub.Matmul.future(slow, timeout=120)
            harness.wait_until(lambda: server.metrics()["tcgemm_pool_bytes{"
                                                        'pool="pinned",state="used"}'] > 0)
            time.sleep(0.05)  # until it is in the device
            start = time.monotonic()
            code = harness.code_of(lambda: other.Matmul(quick, timeout=0.05))
            took = time.monotonic() - start
            self.assertEqual(code, grpc.StatusCode.DEADLINE_EXCEEDED)
            self.assertLess(took, 0.065)
            harness.wait_until(lambda: harness.counted(server.metrics()).get("DEADLINE_EXCEEDED"))
            self.assertFalse(running.done(), "the slow job was not slow")
            running.result()
            samples = server.metrics()
            # Dropped from the queue: never launched.
            self.assertEqual(launches(server) - before, 1)
            self.assertEqual(samples['tcgemm_cancelled_total{stage="queue"}'], 1)

    def test_cancelled_while_queued_is_never_launched(self):
        options = [("grpc.max_receive_message_length", -1)]
        slow = harness.random_request(self.rng, 2048, 2048, 2048)
        quick = harness.random_request(self.rng, 64, 64, 64)
        with harness.Server("--cpu-backend=plain", "--cpu-threads=1", "--max-batch=1") as server, \
                harness.stub(server.address, options) as stub:
            running = stub.Matmul.future(slow, timeout=120)
            harness.wait_until(lambda: server.metrics()["tcgemm_pool_bytes{"
                                                        'pool="pinned",state="used"}'] > 0)
            queued = [stub.Matmul.future(quick, timeout=60) for _ in range(8)]
            harness.wait_until(lambda: server.metrics()["tcgemm_queue_depth"] == 8)
            for call in queued:
                call.cancel()
            harness.wait_until(lambda: harness.counted(server.metrics()).get("CANCELLED") == 8)
            running.result()
            self.assertEqual(launches(server), 1)


if __name__ == "__main__":
    harness.main()
