"""Operands and results beyond 2 GiB: right to the last element, in every place that counts offsets."""

import unittest

import grpc
import numpy as np

import harness
from harness import pb

CHUNK = 4 << 20
LONG = 1_100_000  # with 1000 of 2 bytes each: 2.2 GB


def values(rows, cols, row_step, col_step):
    """Small whole numbers (bf16 bits) that differ from row to row and column to column."""
    i = np.arange(rows, dtype=np.int64)[:, None] * row_step
    j = np.arange(cols, dtype=np.int64)[None, :] * col_step
    return ((i + j) % 5 - 2).astype(np.float32)


class Periodic:
    """A matrix of any height whose rows repeat after five: its bytes, without having them all."""

    def __init__(self, rows, cols, row_step, col_step):
        self.rows, self.cols = rows, cols
        self.period = harness.to_bf16(values(5, cols, row_step, col_step)).tobytes()
        self.bytes = 2 * rows * cols
        repeats = CHUNK // len(self.period) + 2
        self.source = self.period * repeats

    def panels(self, name):
        for at in range(0, self.bytes, CHUNK):
            start = at % len(self.period)
            data = self.source[start:start + min(CHUNK, self.bytes - at)]
            yield pb.MatmulStreamRequest(**{name: pb.Panel(offset=at, data=data)})

    def operand(self, transposed=False):
        return pb.Operand(rows=self.rows, cols=self.cols, dtype=pb.BF16, transposed=transposed)


class LargeStreamTest(unittest.TestCase):
    def stream(self, a, b, transpose_a=False, output=pb.FP32):
        """Yields (offset, bytes) of D."""
        def messages():
            yield pb.MatmulStreamRequest(header=pb.MatmulRequest(
                a=a.operand(transpose_a), b=b.operand(), output_dtype=output))
            yield from b.panels("b")
            yield from a.panels("a")

        with harness.Server("--resident-bytes=2400MiB", "--pinned-bytes=256MiB",
                            "--queue-bytes=256MiB") as server:
            with harness.stub(server.address) as stub:
                at = 0
                for response in stub.MatmulStream(messages(), timeout=600):
                    if response.HasField("d"):
                        self.assertEqual(response.d.offset, at)
                        yield at, response.d.data
                        at += len(response.d.data)
            self.assertLess(server.peak_rss(), 3600 << 20)
            self.assertEqual(server.stop(), 0)

    def column(self, a, b, transpose_a):
        """D of N = 1."""
        d = b"".join(data for _, data in self.stream(a, b, transpose_a))
        return np.frombuffer(d, np.float32)

    def test_a_long_a_that_is_cut_into_panels(self):
        a, b = Periodic(LONG, 1000, 7, 3), Periodic(1000, 1, 2, 1)
        expected = (values(5, 1000, 7, 3).astype(np.float64) @ values(1000, 1, 2, 1)).ravel()
        got = self.column(a, b, False)
        np.testing.assert_array_equal(got, np.resize(expected, LONG).astype(np.float32))

    def test_a_long_a_that_is_stored_transposed(self):
        a, b = Periodic(1000, LONG, 7, 3), Periodic(1000, 1, 2, 1)
        expected = (values(1000, 5, 7, 3).T.astype(np.float64) @ values(1000, 1, 2, 1)).ravel()
        got = self.column(a, b, True)
        np.testing.assert_array_equal(got, np.resize(expected, LONG).astype(np.float32))

    def test_a_long_b(self):
        a, b = Periodic(3, 1000, 7, 3), Periodic(1000, LONG, 2, 1)
        d = b"".join(data for _, data in self.stream(a, b))
        expected = values(3, 1000, 7, 3).astype(np.float64) @ values(1000, 5, 2, 1)
        got = np.frombuffer(d, np.float32).reshape(3, LONG)
        np.testing.assert_array_equal(got, np.tile(expected, LONG // 5).astype(np.float32))

    def test_a_large_d(self):
        m, n = 40_000, 30_000  # 2.4 GB
        a, b = Periodic(m, 10, 7, 3), Periodic(10, n, 2, 1)
        expected = values(5, 10, 7, 3).astype(np.float64) @ values(10, 5, 2, 1)
        row = [harness.to_bf16(np.tile(r, n // 5)).tobytes() for r in expected]
        period = b"".join(row)
        source = period * (CHUNK // len(period) + 2)
        total = 0
        for at, data in self.stream(a, b, output=pb.BF16):
            start = at % len(period)
            self.assertTrue(data == source[start:start + len(data)], f"wrong bytes from {at} on")
            total += len(data)
        self.assertEqual(total, 2 * m * n)


if __name__ == "__main__":
    harness.main()
