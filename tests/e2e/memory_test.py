"""Memory stays inside the budgets whatever clients do, and returns to its plateau."""

import os
import tempfile
import threading
import time
import unittest

import numpy as np

import harness
import raw_client

MIB = 1 << 20
CLIENTS = 200
PAYLOAD = 64 * MIB


class MemoryTest(unittest.TestCase):
    def test_200_clients_with_64_mib_each_at_once(self):
        rng = np.random.default_rng(29)
        # A tall A and a narrow B: 64 MiB in, 8 MiB out, little to compute.
        m, k, n = (PAYLOAD // 2) // 64, 64, 8
        message = raw_client.frame(harness.random_request(rng, m, n, k).SerializeToString())
        budgets = {"pinned": 512 * MIB, "queue": 512 * MIB}
        with harness.Server("--max-message-bytes=65MiB", f"--pinned-bytes={budgets['pinned']}",
                            f"--queue-bytes={budgets['queue']}") as server:
            base = server.rss()
            outcomes = []
            lock = threading.Lock()
            start = time.monotonic()

            def one(_):
                with raw_client.RawCall(server.address, timeout=120) as call:
                    try:
                        call.send(message, end=True)
                        status, _, _ = call.finish()
                    except OSError:
                        status = None
                    with lock:
                        outcomes.append((status, time.monotonic() - start))

            harness.in_threads(CLIENTS, one)
            statuses = [status for status, _ in outcomes]
            self.assertEqual(len(statuses), CLIENTS)
            self.assertLessEqual(set(statuses), {0, 8}, "OK or RESOURCE_EXHAUSTED, nothing else")
            self.assertGreater(statuses.count(0), 0)
            self.assertGreater(statuses.count(8), 0, "nobody was refused: no overload, no test")
            ceiling = base + budgets["queue"] + 8 * MIB * CLIENTS
            self.assertLessEqual(server.peak_rss(), ceiling)
            self.assertTrue(server.alive())
            harness.wait_until(
                lambda: sum(harness.counted(server.metrics()).values()) == CLIENTS)
            codes = harness.counted(server.metrics())
            self.assertEqual(codes["OK"], statuses.count(0))
            self.assertEqual(codes["RESOURCE_EXHAUSTED"], statuses.count(8))
            print(f"ok {statuses.count(0)} refused {statuses.count(8)} "
                  f"peak {(server.peak_rss() - base) / MIB:.0f} MiB over idle")

    def test_a_message_far_above_the_limit_costs_no_more_than_the_budget(self):
        # gRPC buffers up to the announced length before it looks at the limit.
        announced = b"\0" + (1 << 30).to_bytes(4, "big")
        for method in (raw_client.METHOD, "/grpc.health.v1.Health/Check"):
            with harness.Server("--max-message-bytes=16MiB", "--queue-bytes=64MiB",
                                "--pinned-bytes=64MiB") as server:
                base = server.rss()
                with raw_client.RawCall(server.address, method=method) as call:
                    try:
                        call.send(announced + bytes(512 * MIB), end=False)
                    except OSError:
                        pass  # the server may close the connection
                self.assertTrue(server.alive())
                self.assertEqual(harness.client("health", server=server.address).returncode, 0)
                # The quota, and what glibc adds.
                self.assertLess(server.peak_rss() - base, (64 * 5 / 4 + 64 + 64) * MIB, method)

    def test_resident_memory_is_taken_when_it_is_used(self):
        with harness.Server("--device=cpu", "--resident-bytes=2GiB") as server:
            base = server.rss()
            self.assertLess(base, 512 * MIB + 512 * MIB)  # --pinned-bytes is there from the start
            with tempfile.TemporaryDirectory(prefix="tcgemm-test-") as folder:
                path = os.path.join(folder, "w.npy")
                np.save(path, np.ones((4096, 8192), np.float32))  # 64 MiB in bf16
                for _ in range(3):
                    result = harness.client("upload", path, "--name", "w", server=server.address)
                    self.assertEqual(result.returncode, 0, result.stderr)
                    result = harness.client("delete", "w", server=server.address)
                    self.assertEqual(result.returncode, 0, result.stderr)
            self.assertGreaterEqual(server.rss(), base + 64 * MIB)
            # The same memory each time; a few MiB of messages beside it.
            self.assertLess(server.rss(), base + 2 * 64 * MIB)

    def test_plateau_under_repeated_large_calls(self):
        rng = np.random.default_rng(31)
        large = harness.random_request(rng, 1024, 1024, 1024)
        small = harness.random_request(rng, 64, 64, 64)
        with harness.Server() as server, harness.stub(server.address) as stub:
            def load(rounds):
                for _ in range(rounds):
                    stub.Matmul(large, timeout=30)
                    for _ in range(5):
                        stub.Matmul(small, timeout=30)
            load(30)
            plateau = server.rss()
            load(60)
            self.assertLess(server.rss() - plateau, 16 * MIB)


if __name__ == "__main__":
    harness.main()
