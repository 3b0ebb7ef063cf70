"""A row of D depends on its row of op(A), on op(B) and the types; on nothing else.

Run once per instruction set and backend (CMakeLists.txt sets the environment).
"""

import unittest

import numpy as np

import harness
from harness import pb

N, K = 67, 203  # odd on purpose: tails in every direction


class InvarianceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server("--max-batch=64", "--max-queue-delay-us=20000", unix=True)
        rng = np.random.default_rng(11)
        cls.a = harness.normal_bf16(rng, 130, K)
        cls.b = harness.normal_bf16(rng, K, N)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def rows(self, data, output):
        return np.frombuffer(data, np.uint16 if output == pb.BF16 else np.uint32).reshape(-1, N)

    def test_every_m_gives_rows_of_the_taller_product(self):
        with harness.stub(self.server.address) as tcp, harness.stub(self.server.unix) as unix:
            for output in (pb.BF16, pb.FP32):
                tall = self.rows(tcp.Matmul(harness.request(self.a, self.b, output),
                                            timeout=60).d, output)
                stubs = (tcp, unix)
                calls = [(m, stubs[m % 2].Matmul.future(
                    harness.request(self.a[130 - m:], self.b, output), timeout=60))
                    for m in range(1, 131)]
                for m, call in calls:
                    got = self.rows(call.result().d, output)
                    self.assertTrue(np.array_equal(got, tall[130 - m:]), f"M = {m}")

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
