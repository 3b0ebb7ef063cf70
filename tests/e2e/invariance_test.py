"""A row of D depends on its row of op(A), on op(B) and the types; on nothing else.

Run once per instruction set and backend (CMakeLists.txt sets the environment), and on a GPU with
TCGEMM_DEVICE=cuda.
"""

import os
import unittest

import numpy as np

import harness
from harness import pb

N, K = 67, 203  # odd on purpose: tails in every direction
TALL = 300
# On a GPU also where kernels and tiles change with M: few columns and long sums.
WIDE = [(576, 7168), (2112, 1536)] if os.environ.get("TCGEMM_DEVICE", "").startswith("cuda") else []


class InvarianceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server("--max-batch=64", "--max-queue-delay-us=20000", unix=True)
        rng = np.random.default_rng(11)
        cls.a = harness.normal_bf16(rng, TALL, K)
        cls.b = harness.normal_bf16(rng, K, N)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def every_m(self, a, b, output):
        """The last m rows of A for every m, over both sockets: batched with what comes along."""
        as_rows = lambda data: np.frombuffer(
            data, np.uint16 if output == pb.BF16 else np.uint32).reshape(-1, b.shape[1])
        with harness.stub(self.server.address) as tcp, harness.stub(self.server.unix) as unix:
            tall = as_rows(tcp.Matmul(harness.request(a, b, output), timeout=60).d)
            stubs = (tcp, unix)
            most = 0
            for first in range(1, TALL + 1, 100):  # a hundred at once
                calls = [(m, stubs[m % 2].Matmul.future(
                    harness.request(a[TALL - m:], b, output), timeout=60))
                    for m in range(first, first + 100)]
                for m, call in calls:
                    answer = call.result()
                    most = max(most, answer.batched_with)
                    self.assertTrue(np.array_equal(as_rows(answer.d), tall[TALL - m:]), f"M = {m}")
            self.assertGreater(most, 0, "never batched: half of the test showed nothing")

    def alone(self, a, b, output):
        with harness.stub(self.server.unix) as stub:
            size = 2 if output == pb.BF16 else 4
            tall = stub.Matmul(harness.request(a, b, output), timeout=60).d
            for m in (*range(1, 131, 3), 191, 192, 193, 255, 256, 257, 299):
                answer = stub.Matmul(harness.request(a[TALL - m:], b, output), timeout=60)
                self.assertEqual(answer.batched_with, 0)
                self.assertEqual(answer.d, tall[(TALL - m) * b.shape[1] * size:], f"M = {m}")

    def test_every_m_gives_rows_of_the_taller_product(self):
        for output in (pb.BF16, pb.FP32):
            self.every_m(self.a, self.b, output)
        for n, k in WIDE:
            rng = np.random.default_rng(n)
            self.every_m(harness.normal_bf16(rng, TALL, k), harness.normal_bf16(rng, k, n), pb.FP32)

    def test_alone_m_gives_rows_of_the_taller_product(self):
        self.alone(self.a, self.b, pb.FP32)
        for n, k in WIDE:
            rng = np.random.default_rng(n)
            self.alone(harness.normal_bf16(rng, TALL, k), harness.normal_bf16(rng, k, n), pb.BF16)

    def test_layouts_agree(self):
        with harness.stub(self.server.address) as stub:
            expected = stub.Matmul(harness.request(self.a, self.b, pb.FP32), timeout=60).d
            for transpose_a in (False, True):
                for transpose_b in (False, True):
                    a = np.ascontiguousarray(self.a.T) if transpose_a else self.a
                    b = np.ascontiguousarray(self.b.T) if transpose_b else self.b
                    request = pb.MatmulRequest(a=harness.operand(a, transpose_a),
                                               b=harness.operand(b, transpose_b),
                                               output_dtype=pb.FP32)
                    self.assertEqual(stub.Matmul(request, timeout=60).d, expected)

    def test_alone_and_with_63_others_one_of_them_full_of_nan(self):
        rng = np.random.default_rng(13)
        mine = harness.request(self.a[:33], self.b, pb.FP32)
        others = [harness.request(harness.normal_bf16(rng, int(m), K), self.b, pb.FP32)
                  for m in rng.integers(1, 100, 62)]
        poison = harness.request(np.full((40, K), 0xFFFF, np.uint16),
                                 np.full((K, N), 0x7FC1, np.uint16), pb.FP32)
        with harness.stub(self.server.address) as stub:
            alone = stub.Matmul(mine, timeout=60)
            self.assertEqual(alone.batched_with, 0)
            most = 0
            for _ in range(5):
                calls = [stub.Matmul.future(r, timeout=60)
                         for r in [*others[:31], poison, mine, *others[31:]]]
                answers = [call.result() for call in calls]
                self.assertEqual(answers[32].d, alone.d)
                most = max(most, answers[32].batched_with)
            self.assertGreater(most, 0, "never batched: the test showed nothing")
            self.assertTrue(np.all(np.frombuffer(answers[31].d, np.uint32) == 0x7FC00000))

    def test_right_at_all(self):
        with harness.stub(self.server.address) as stub:
            request = harness.request(self.a, self.b, pb.FP32)
            harness.close_enough(self, request, stub.Matmul(request, timeout=60))


if __name__ == "__main__":
    harness.main()
