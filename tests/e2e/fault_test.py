"""What fails in the device ends as promised: failpoints stand for a bad machine.

On a machine with a GPU and a build for it the same runs with TCGEMM_DEVICE=cuda.
"""

import threading
import unittest

import grpc
import numpy as np

import harness

SHAPE = (7, 8, 9)  # not one of the self-test's
MARK = "x".join(str(side) for side in SHAPE)


class HealthWatch:
    """Every status that gRPC health reports until the connection ends."""

    def __init__(self, server):
        self.seen = []
        self.serving = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(server,))
        self._thread.start()

    def _run(self, server):
        with harness.health_stub(server.address) as stub:
            try:
                for answer in stub.Watch(harness.health_pb2.HealthCheckRequest()):
                    self.seen.append(answer.status)
                    self.serving.set()
            except grpc.RpcError:
                pass

    def join(self):
        self._thread.join(30)
        return self.seen


class FaultTest(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(23)

    def totals(self, server):
        """(admitted, completed, failed, refused) of the last log line."""
        last = server.log().strip().splitlines()[-1]
        self.assertIn("ended: ", last)
        return tuple(int(word) for word in last.replace(",", "").split() if word.isdigit())

    def check_end(self, failpoint, exit_code, words):
        with harness.Server("--watchdog-min=300ms", "--max-batch=1",
                            env={"TCGEMM_FAILPOINT": f"{failpoint}:{MARK}"}) as server:
            health = HealthWatch(server)
            self.assertTrue(health.serving.wait(10))
            with harness.stub(server.address) as stub:
                good = harness.random_request(self.rng, 8, 8, 8)
                for _ in range(3):
                    stub.Matmul(good, timeout=30)
                m, n, k = SHAPE
                bad = stub.Matmul.future(harness.random_request(self.rng, m, n, k), timeout=30)
                later = [stub.Matmul.future(good, timeout=30) for _ in range(20)]
                self.assertEqual(bad.code(), grpc.StatusCode.INTERNAL)
                self.assertIn("failed: ", bad.details())
                codes = {call.code() for call in later}
            # In flight with it, waiting, or too late: none is lost, none is answered wrongly.
            self.assertLessEqual(codes, {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE,
                                         grpc.StatusCode.OK})
            self.assertEqual(server.wait(), exit_code)
            serving = harness.health_pb2.HealthCheckResponse.SERVING
            not_serving = harness.health_pb2.HealthCheckResponse.NOT_SERVING
            self.assertEqual(health.join(), [serving, not_serving])
            self.assertIn(words, server.log())
            # Each started call counts once. (The watch of the health is no Matmul.)
            admitted, completed, failed, refused = self.totals(server)
            self.assertEqual(admitted, completed + failed)
            self.assertLessEqual(admitted + refused, 24)
            self.assertGreaterEqual(completed, 3)
            self.assertGreaterEqual(failed, 1)

    def test_a_hung_kernel_is_exit_7(self):
        self.check_end("hang_kernel", 7, "the device hangs: watchdog: a batch of 1 (first 7x8x9)")

    def test_a_sticky_error_is_exit_5(self):
        self.check_end("sticky_error", 5, "the device is lost: failpoint: a sticky error")

    def test_a_failed_self_test_is_exit_4(self):
        with harness.Server(env={"TCGEMM_FAILPOINT": "self_test"}, wait=False) as server:
            self.assertEqual(server.wait(), 4)
            self.assertEqual(server.stdout, [])
            self.assertRegex(server.log(), "the self-test of device .* failed: .*1x1x1")

    def test_a_failpoint_that_cannot_be_read_is_exit_2(self):
        with harness.Server(env={"TCGEMM_FAILPOINT": "hang"}, wait=False) as server:
            self.assertEqual(server.wait(), 2)
            self.assertIn("TCGEMM_FAILPOINT is 'hang'", server.log())


if __name__ == "__main__":
    harness.main()
