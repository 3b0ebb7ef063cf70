"""alpha, beta, C, bias and activations through a stock client, against float64."""

import math
import os
import tempfile
import unittest

import numpy as np

import harness
from harness import pb

ERF = np.vectorize(math.erf)


def activate(activation, x):
    if activation == pb.RELU:
        return np.maximum(x, 0)
    if activation == pb.GELU:
        return 0.5 * x * (1 + ERF(x / math.sqrt(2)))
    if activation == pb.SILU:
        return x / (1 + np.exp(-x))
    return x


def fp32(values):
    values = np.ascontiguousarray(values, np.float32)
    return pb.Operand(rows=values.shape[0], cols=values.shape[1], dtype=pb.FP32,
                      inline=values.tobytes())


def widened(operand):
    data = np.frombuffer(operand.inline, np.float32 if operand.dtype == pb.FP32 else np.uint16)
    data = data.reshape(operand.rows, operand.cols)
    return data.astype(np.float64) if operand.dtype == pb.FP32 else harness.from_bf16(data)


class EpilogueTest(unittest.TestCase):
    M, N, K = 37, 53, 71

    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server("--resident-bytes=1MiB")
        cls.rng = np.random.default_rng(11)
        cls.a = harness.normal_bf16(cls.rng, cls.M, cls.K)
        cls.b = harness.normal_bf16(cls.rng, cls.K, cls.N)
        cls.product = harness.from_bf16(cls.a).astype(np.float64) @ harness.from_bf16(cls.b)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def multiply(self, request):
        with harness.stub(self.server.address) as stub:
            response = stub.Matmul(request, timeout=30)
        bits = np.frombuffer(response.d, np.float32 if response.dtype == pb.FP32 else np.uint16)
        d = bits.reshape(response.rows, response.cols)
        return d.astype(np.float64) if response.dtype == pb.FP32 else harness.from_bf16(d)

    def expected(self, request):
        x = np.float64(np.float32(request.alpha if request.HasField("alpha") else 1)) * self.product
        if request.beta:
            x = x + np.float64(np.float32(request.beta)) * widened(request.c)
        if request.HasField("bias"):
            x = x + widened(request.bias)
        return activate(request.activation, x)

    def check(self, request):
        for output, share in ((pb.FP32, 0), (pb.BF16, 2**-8)):
            request.output_dtype = output
            expected = self.expected(request)
            error = np.abs(self.multiply(request) - expected)
            self.assertLessEqual((error - share * np.abs(expected)).max(), 1e-4)

    def test_each_part_and_all(self):
        c = self.rng.standard_normal((self.M, self.N))
        row = self.rng.standard_normal((1, self.N))
        column = self.rng.standard_normal((self.M, 1))
        bf16 = lambda values: harness.operand(harness.to_bf16(values))
        changes = [
            dict(alpha=-0.5),
            dict(c=fp32(c), beta=1.5),
            dict(c=bf16(c), beta=-0.25, alpha=2),
            dict(bias=fp32(row)), dict(bias=bf16(row)),
            dict(bias=fp32(column)), dict(bias=bf16(column)),
            dict(activation=pb.RELU), dict(activation=pb.GELU), dict(activation=pb.SILU),
            dict(alpha=0.1, c=bf16(c), beta=0.7, bias=fp32(row), activation=pb.GELU),
            dict(alpha=0.1, c=fp32(c), beta=0.7, bias=bf16(column), activation=pb.SILU),
        ]
        for change in changes:
            request = harness.request(self.a, self.b, **change)
            with self.subTest(str([*change])):
                self.check(request)

    def test_a_rows_bits_do_not_depend_on_the_other_rows(self):
        c = self.rng.standard_normal((self.M, self.N))
        for bias in (self.rng.standard_normal((1, self.N)), self.rng.standard_normal((self.M, 1))):
            column = bias.shape[1] == 1
            extra = dict(alpha=0.3, beta=0.5, activation=pb.GELU, output=pb.FP32)
            whole = self.multiply(harness.request(self.a, self.b, c=fp32(c), bias=fp32(bias),
                                                  **extra))
            for i in range(0, self.M, 5):
                one = self.multiply(harness.request(
                    self.a[i:i + 1], self.b, c=fp32(c[i:i + 1]),
                    bias=fp32(bias[i:i + 1] if column else bias), **extra))
                self.assertEqual(one.tobytes(), whole[i:i + 1].tobytes(), i)

    def test_the_command_line(self):
        with tempfile.TemporaryDirectory() as folder:
            path = lambda name: os.path.join(folder, name + ".npy")
            np.save(path("a"), self.a.view("V2"))
            np.save(path("b"), self.b.view("V2"))
            np.save(path("c"), self.rng.standard_normal((self.M, self.N)).astype(np.float32))
            np.save(path("row"), self.rng.standard_normal(self.N).astype(np.float32))
            np.save(path("column"), self.rng.standard_normal(self.M).astype(np.float32))
            epilogue = ["--alpha", "0.1", "--beta", "-0.5", "--c", path("c"),
                        "--activation", "gelu"]
            for bias in ("row", "column"):
                flags = [*epilogue, "--bias", path(bias)]
                made = harness.client("matmul", path("a"), path("b"), "-o", path("d"), "--check",
                                      "--output", "fp32", *flags, server=self.server.address)
                self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
                self.assertIn("right", made.stdout)
                checked = harness.client("check", path("a"), path("b"), path("d"), *flags)
                self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
                for wrong in (epilogue, [*flags, "--alpha", "0.2"][2:],
                              [*flags[:-4], "--activation", "silu", *flags[-2:]]):
                    result = harness.client("check", path("a"), path("b"), path("d"), *wrong)
                    self.assertEqual(result.returncode, 1, str(wrong) + result.stdout)
            wrong_axis = harness.client("matmul", path("a"), path("b"), "-o", path("d"), "--bias",
                                        path("row"), "--bias-axis", "column",
                                        server=self.server.address)
            self.assertEqual(wrong_axis.returncode, 2, wrong_axis.stderr)
            self.assertIn("bias", wrong_axis.stderr)

    def test_resident_operands_on_the_command_line(self):
        with tempfile.TemporaryDirectory() as folder:
            path = lambda name: os.path.join(folder, name + ".npy")
            np.save(path("a"), self.a.view("V2"))
            np.save(path("b"), self.b.view("V2"))
            np.save(path("row"), harness.normal_bf16(self.rng, 1, self.N).view("V2"))
            server = self.server.address
            for name in ("b", "row"):
                up = harness.client("upload", path(name), "--name", name, server=server)
                self.assertEqual(up.returncode, 0, up.stderr)
            kept = harness.client("matmul", path("a"), "@b", "--keep", "--keep-name", "sum",
                                  "--output", "fp32", server=server)
            self.assertEqual(kept.returncode, 0, kept.stderr)
            made = harness.client("matmul", path("a"), "@b", "-o", path("d"), "--c", "@sum",
                                  "--beta", "1", "--bias", "@row", "--activation", "silu",
                                  "--output", "fp32", server=server)
            self.assertEqual(made.returncode, 0, made.stderr)
            x = 2 * self.product + harness.from_bf16(np.load(path("row")).view(np.uint16))
            error = np.abs(np.load(path("d")) - activate(pb.SILU, x))
            self.assertLessEqual(error.max(), 1e-4)
            for name in ("b", "row", "sum"):
                self.assertEqual(harness.client("delete", name, server=server).returncode, 0)


if __name__ == "__main__":
    harness.main()
