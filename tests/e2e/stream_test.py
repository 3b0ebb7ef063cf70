"""MatmulStream: the same bits as one message, whatever the cut; hostile clients; nothing is left."""

import os
import re
import shutil
import tempfile
import threading
import time
import unittest

import grpc
import numpy as np

import harness
import raw_client
from harness import pb
from resident_test import crc32c, upload

CODE = grpc.StatusCode
MIB = 1 << 20
METHOD = "/tcgemm.v1.MatmulService/MatmulStream"


def header(a=None, b=None, output=pb.FP32, keep=None, **kwargs):
    """The first message; `a` and `b` are pb.Operand without bytes."""
    request = pb.MatmulRequest(a=a, b=b, output_dtype=output, **kwargs)
    if keep is not None:
        request.output.handle = keep
    return pb.MatmulStreamRequest(header=request)


def shape(bits, transposed=False):
    return pb.Operand(rows=bits.shape[0], cols=bits.shape[1], dtype=pb.BF16, transposed=transposed)


def panels(name, bits, chunk, crc=False):
    data = bits.tobytes()
    for at in range(0, len(data), chunk):
        panel = pb.Panel(offset=at, data=data[at:at + chunk])
        if crc:
            panel.crc32c = crc32c(panel.data)
        yield pb.MatmulStreamRequest(**{name: panel})


def messages(a, b, output=pb.FP32, chunk=MIB, transposed=(False, False), crc=False):
    yield header(shape(a, transposed[0]), shape(b, transposed[1]), output)
    yield from panels("b", b, chunk, crc)
    yield from panels("a", a, chunk, crc)


def collect(responses):
    """(D's bytes, first header, last header) of a stream that ends well."""
    first = next(responses).header
    d, last = [], None
    for response in responses:
        if response.HasField("header"):
            last = response.header
        else:
            assert response.d.offset == sum(map(len, d))
            d.append(response.d.data)
    return b"".join(d), first, last


def multiply(stub, a, b, **kwargs):
    return collect(stub.MatmulStream(messages(a, b, **kwargs), timeout=60))[0]


class Gate:
    """An iterator that stops in the middle until it is told to go on, or for ever."""

    def __init__(self, items, stop_after):
        self.items = list(items)
        self.stop_after = stop_after
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __iter__(self):
        for index, item in enumerate(self.items):
            if index == self.stop_after:
                self.reached.set()
                self.go_on.wait(60)
            yield item


class StreamTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server("--resident-bytes=64MiB", "--pinned-bytes=128MiB",
                                    "--send-timeout=1s", "--receive-timeout=2s", unix=True)
        cls.context = harness.stub(cls.server.address)  # stock limits: no message above 4 MiB
        cls.stub = cls.context.__enter__()
        cls.rng = np.random.default_rng(11)

    @classmethod
    def tearDownClass(cls):
        cls.context.__exit__(None, None, None)
        code = cls.server.stop()
        cls.server.__exit__()
        assert code == 0, code

    def tearDown(self):
        def nothing_held():
            samples = self.server.metrics()
            return (samples['tcgemm_pool_bytes{pool="pinned",state="used"}'] == 0 and
                    samples['tcgemm_pool_bytes{pool="resident",state="used"}'] == 0 and
                    samples["tcgemm_inflight_requests"] == 0)
        harness.wait_until(nothing_held, what="all memory is free again")

    def matrix(self, rows, cols):
        return harness.normal_bf16(self.rng, rows, cols)

    def refused(self, items, code, words):
        with self.assertRaises(grpc.RpcError) as caught:
            list(self.stub.MatmulStream(iter(items), timeout=20))
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        self.assertIn(words, caught.exception.details())
        return caught.exception

    def test_the_bits_of_one_message_in_every_layout(self):
        for m, n, k in ((1, 1, 1), (1, 130, 77), (67, 1, 129), (300, 33, 65), (129, 257, 31)):
            for layout in range(4):
                transposed = bool(layout & 1), bool(layout & 2)
                a = self.matrix(*((k, m) if transposed[0] else (m, k)))
                b = self.matrix(*((n, k) if transposed[1] else (k, n)))
                for output in (pb.BF16, pb.FP32):
                    one = self.stub.Matmul(pb.MatmulRequest(
                        a=harness.operand(a, transposed[0]), b=harness.operand(b, transposed[1]),
                        output_dtype=output), timeout=30)
                    for chunk in (501, 4096, MIB):
                        with self.subTest(m=m, n=n, k=k, layout=layout, output=output, chunk=chunk):
                            d = multiply(self.stub, a, b, output=output, chunk=chunk,
                                         transposed=transposed)
                            self.assertEqual(d, one.d)

    def test_many_panels_with_stock_limits(self):
        a, b = self.matrix(6000, 1000), self.matrix(1000, 700)  # 12 MB in, 16.8 MB out
        d, first, last = collect(self.stub.MatmulStream(messages(a, b), timeout=60))
        self.assertEqual((first.rows, first.cols, first.dtype), (6000, 700, pb.FP32))
        self.assertEqual((last.rows, last.cols), (6000, 700))
        self.assertTrue(last.kernel)
        self.assertGreater(last.timings.kernel_ns, 0)
        exact = harness.from_bf16(a).astype(np.float64) @ harness.from_bf16(b).astype(np.float64)
        got = np.frombuffer(d, np.float32).reshape(6000, 700)
        self.assertLess(np.abs(got - exact).max(), 1e-2)
        # Tiny pieces, with CRCs, and the other output.
        a, b = a[:300, :50], b[:50]
        self.assertEqual(multiply(self.stub, a, b, chunk=97, crc=True, output=pb.BF16),
                         self.stub.Matmul(harness.request(a, b), timeout=30).d)

    def test_d_comes_while_a_is_still_going_out(self):
        a, b = self.matrix(8000, 1000), self.matrix(1000, 500)
        expected = multiply(self.stub, a, b)
        items = list(messages(a, b, chunk=100_000))
        gate = Gate(items, len(items) - 10)
        responses = self.stub.MatmulStream(iter(gate), timeout=60)
        first = next(responses)
        self.assertEqual(first.header.rows, 8000)
        early = next(responses)  # before the gate opens
        self.assertTrue(early.HasField("d"))
        self.assertFalse(gate.go_on.is_set())
        gate.go_on.set()
        d = early.d.data + b"".join(r.d.data for r in responses)
        self.assertEqual(d, expected)

    def test_handles_mix_with_streams(self):
        a, b = self.matrix(500, 300), self.matrix(300, 200)
        expected = multiply(self.stub, a, b, output=pb.BF16)
        upload(self.stub, a, "a")
        upload(self.stub, b, "b")
        try:
            by_a, by_b = pb.Operand(handle="a"), pb.Operand(handle="b")
            for items in ([header(by_a, by_b, pb.BF16)],
                          [header(shape(a), by_b, pb.BF16), *panels("a", a, 10_000)],
                          [header(by_a, shape(b), pb.BF16), *panels("b", b, 10_000)]):
                self.assertEqual(
                    collect(self.stub.MatmulStream(iter(items), timeout=30))[0], expected)
            kept = [header(shape(a), by_b, pb.BF16, keep="d"), *panels("a", a, 10_000)]
            d, first, last = collect(self.stub.MatmulStream(iter(kept), timeout=30))
            self.assertEqual((d, first.handle, last.handle), (b"", "", "d"))
            chunks = self.stub.DownloadMatrix(pb.DownloadMatrixRequest(handle="d"), timeout=30)
            self.assertEqual(b"".join(chunk.data for chunk in chunks), expected)
        finally:
            for info in self.stub.ListMatrices(pb.ListMatricesRequest(), timeout=10).matrices:
                self.stub.DeleteMatrix(pb.DeleteMatrixRequest(handle=info.handle), timeout=10)

    def test_hostile_sequences(self):
        a, b = self.matrix(4, 6), self.matrix(6, 5)
        start = header(shape(a), shape(b))
        whole_a, whole_b = next(panels("a", a, MIB)), next(panels("b", b, MIB))
        wrong = next(panels("b", b, MIB, crc=True))
        wrong.b.crc32c ^= 1
        late = pb.MatmulStreamRequest(a=pb.Panel(offset=48, data=b"x"))
        for items, code, words in (
                ([], CODE.INVALID_ARGUMENT, "without a header"),
                ([whole_b], CODE.INVALID_ARGUMENT, "before the header"),
                ([start, start], CODE.INVALID_ARGUMENT, "a second header"),
                ([start, whole_a], CODE.INVALID_ARGUMENT, "b comes first"),
                ([start, whole_b, whole_b], CODE.INVALID_ARGUMENT, "b.offset is 0"),
                ([start, whole_b], CODE.INVALID_ARGUMENT, "after 0 of 48 bytes of a"),
                ([start, whole_b, whole_a, late], CODE.INVALID_ARGUMENT, "a has 48 in all"),
                ([start, wrong], CODE.DATA_LOSS, "b.crc32c is"),
                ([header(shape(a), pb.Operand(handle="gone"))], CODE.NOT_FOUND, "b.handle"),
                ([header(shape(self.matrix(9, 9)), shape(b))], CODE.INVALID_ARGUMENT,
                 "inner dimensions differ"),
                ([start, pb.MatmulStreamRequest(b=pb.Panel(data=bytes(5 * MIB)))],
                 CODE.RESOURCE_EXHAUSTED, "limit 4194304")):
            with self.subTest(words):
                self.refused(items, code, words)
        huge = pb.Operand(rows=1 << 20, cols=1 << 10, dtype=pb.BF16)
        error = self.refused([header(pb.Operand(rows=4, cols=1 << 20, dtype=pb.BF16), huge)],
                             CODE.RESOURCE_EXHAUSTED, "--resident-bytes")
        self.assertNotIn("grpc-retry-pushback-ms", dict(error.trailing_metadata()))

    def test_every_call_is_counted_once(self):
        before = harness.counted(self.server.metrics(), "MatmulStream")
        a, b = self.matrix(4, 6), self.matrix(6, 5)
        multiply(self.stub, a, b)
        self.refused([], CODE.INVALID_ARGUMENT, "header")
        gate = Gate(messages(a, b), 1)
        call = self.stub.MatmulStream(iter(gate), timeout=60)
        next(call)
        call.cancel()
        gate.go_on.set()
        harness.wait_until(lambda: sum(harness.counted(self.server.metrics(), "MatmulStream")
                                       .values()) == sum(before.values()) + 3)
        after = harness.counted(self.server.metrics(), "MatmulStream")
        for code in ("OK", "INVALID_ARGUMENT", "CANCELLED"):
            self.assertEqual(after[code], before.get(code, 0) + 1, code)

    def test_clients_that_vanish_or_stop(self):
        a, b = self.matrix(4000, 500), self.matrix(500, 500)
        wire = [raw_client.frame(m.SerializeToString()) for m in messages(a, b, chunk=200_000)]
        for sent in (0, 1, 3, len(wire) // 2, len(wire)):
            with raw_client.RawCall(self.server.address, method=METHOD) as call:
                call.send(b"".join(wire[:sent]) + (wire[sent][:77] if sent < len(wire) else b""))
        # Half a message, and then nothing: --receive-timeout.
        with raw_client.RawCall(self.server.unix, method=METHOD) as call:
            call.send(b"".join(wire[:3]) + wire[3][:1000])
            status, message, seconds = call.finish()
            self.assertEqual(status, CODE.DEADLINE_EXCEEDED.value[0], message)
            self.assertIn("--receive-timeout", message)
            self.assertLess(seconds, 10)

    def test_a_client_that_never_reads(self):
        a, b = self.matrix(20000, 100), self.matrix(100, 1000)  # 80 MB of D
        wire = b"".join(raw_client.frame(m.SerializeToString()) for m in messages(a, b))
        base = self.server.rss()
        before = harness.counted(self.server.metrics(), "MatmulStream")
        with raw_client.RawCall(self.server.address, method=METHOD, window=0) as call:
            call.send(wire, end=True)  # stops when the server ends the call
            harness.wait_until(lambda: harness.counted(
                self.server.metrics(), "MatmulStream").get("DEADLINE_EXCEEDED", 0) ==
                               before.get("DEADLINE_EXCEEDED", 0) + 1)
        self.assertLess(self.server.rss() - base, 64 * MIB)

    def test_many_streams_at_once_end_or_are_refused(self):
        a, b = self.matrix(3000, 1000), self.matrix(1000, 1000)
        expected = multiply(self.stub, a, b)

        def one(index):
            ok = 0
            with harness.stub(self.server.unix if index % 2 else self.server.address) as stub:
                for _ in range(3):
                    code = harness.code_of(
                        lambda: self.assertEqual(multiply(stub, a, b), expected))
                    self.assertIn(code, (CODE.OK, CODE.RESOURCE_EXHAUSTED))
                    ok += code == CODE.OK
                    one_message = stub.Matmul(harness.request(a[:50], b), timeout=60)
                    self.assertEqual(one_message.rows, 50)
            return ok

        results = harness.in_threads(12, one)
        self.assertTrue(all(isinstance(ok, int) for ok in results), results)
        self.assertGreater(sum(results), 0)

    def test_memory_returns_to_its_plateau(self):
        a, b = self.matrix(4000, 1000), self.matrix(1000, 1000)

        def load(rounds):
            for i in range(rounds):
                multiply(self.stub, a, b)
                gate = Gate(messages(a, b), 3 + i % 5)
                call = self.stub.MatmulStream(iter(gate), timeout=60)
                gate.reached.wait(20)
                call.cancel()
                gate.go_on.set()
        load(15)
        plateau = self.server.rss()
        load(30)
        self.assertLess(self.server.rss() - plateau, 24 * MIB)


    def test_the_example_of_the_manual(self):
        path = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "STREAMING.md")
        with open(path, encoding="utf-8") as file:
            code = re.search(r"```python\n(.*?)```", file.read(), re.S)[1]
        example = {}
        exec(compile(code, path, "exec"), example)  # pylint: disable=exec-used
        a = self.rng.standard_normal((3000, 700)).astype(np.float32)
        b = self.rng.standard_normal((700, 300)).astype(np.float32)
        d = example["main"](self.server.address, a, b)
        self.assertEqual(d.tobytes(),
                         multiply(self.stub, harness.to_bf16(a), harness.to_bf16(b)))


class DrainTest(unittest.TestCase):
    def test_streams_under_way_finish(self):
        rng = np.random.default_rng(5)
        a, b = harness.normal_bf16(rng, 4000, 500), harness.normal_bf16(rng, 500, 500)
        with harness.Server("--resident-bytes=16MiB") as server, \
                harness.stub(server.address) as stub:
            expected = multiply(stub, a, b)
            gates, calls = [], []
            for stop in (1, 2, 4, 9):
                gates.append(Gate(messages(a, b, chunk=300_000), stop))
                calls.append(stub.MatmulStream(iter(gates[-1]), timeout=60))
            firsts = [next(call) for call in calls]  # admitted
            self.assertEqual({first.header.rows for first in firsts}, {4000})
            server.signal()
            harness.wait_until(lambda: harness.code_of(lambda: multiply(stub, a, b)) ==
                               CODE.UNAVAILABLE)
            for gate in gates:
                gate.go_on.set()
            for call in calls:
                self.assertEqual(b"".join(r.d.data for r in call), expected)
            self.assertEqual(server.wait(), 0, server.log())
            self.assertIn("failed 0", server.log().strip().splitlines()[-1])


class CommandLineTest(unittest.TestCase):
    def test_streams_what_one_message_cannot_hold(self):
        folder = tempfile.mkdtemp(prefix="tcgemm-test-")
        self.addCleanup(shutil.rmtree, folder)
        d_path = os.path.join(folder, "d.npy")
        with harness.Server("--resident-bytes=64MiB", "--max-message-bytes=8MiB",
                            "--pinned-bytes=64MiB", "--queue-bytes=64MiB") as server:
            def run(*args):
                result = harness.client(*args, "--json", server=server.address)
                return result.returncode, result.stdout, result.stderr

            code, out, err = run("matmul", "--random", "3000x300x2000", "--check")
            self.assertEqual(code, 0, err)
            self.assertIn('"streamed":true', out)
            code, out, err = run("matmul", "--random", "30x30x20", "--check")
            self.assertIn('"streamed":false', out)
            code, out, err = run("matmul", "--random", "30x30x20", "--check", "--stream",
                                 "--transpose-a", "--output", "fp32")
            self.assertEqual(code, 0, err)
            self.assertIn('"streamed":true', out)
            # A + B + D do not fit --pinned-bytes.
            code, out, err = run("matmul", "--random", "9000x4000x50", "--output", "fp32",
                                 "--check")
            self.assertEqual(code, 0, err)
            self.assertIn('"streamed":true', out)
            # B does not fit: what to do is said.
            code, out, err = run("matmul", "--random", "10x6000x6000")
            self.assertEqual(code, 4)
            self.assertIn("larger --resident-bytes", err)
            code, out, err = run("bench", "--path", "stream", "--shape", "300x200x100",
                                 "--requests", "5", "--warmup", "0s")
            self.assertEqual(code, 0, err)
            self.assertIn('"path":"stream"', out)
            rng = np.random.default_rng(8)
            paths = []
            for name, size in (("a", (3000, 2000)), ("b", (2000, 30))):
                paths.append(os.path.join(folder, name + ".npy"))
                np.save(paths[-1], rng.standard_normal(size).astype(np.float32))
            self.assertEqual(run("upload", paths[1], "--name", "b")[0], 0)
            self.assertEqual(run("matmul", *paths, "-o", d_path)[0], 0)
            with open(d_path, "rb") as file:
                expected = file.read()
            for extra in ((), ("--stream",)):  # 12 MB of A: the first is streamed on refusal
                self.assertEqual(run("matmul", paths[0], "@b", "-o", d_path, *extra)[0], 0)
                with open(d_path, "rb") as file:
                    self.assertEqual(file.read(), expected)
            code, out, err = run("matmul", paths[0], "@b", "--stream", "--keep")
            self.assertEqual(code, 0, err)
            self.assertEqual(server.stop(), 0)

    def test_an_operand_above_2_gib_is_refused_in_words_without_room(self):
        # Refused by its header: nothing of it is ever made or sent.
        with harness.Server() as server, harness.stub(server.address) as stub:
            a = pb.Operand(rows=1, cols=2**31 - 1, dtype=pb.BF16)
            b = pb.Operand(rows=2**31 - 1, cols=1, dtype=pb.BF16)
            start = time.monotonic()
            with self.assertRaises(grpc.RpcError) as caught:
                list(stub.MatmulStream(iter([header(a, b)]), timeout=20))
            self.assertEqual(caught.exception.code(), CODE.RESOURCE_EXHAUSTED)
            self.assertIn("--pinned-bytes", caught.exception.details())
            self.assertLess(time.monotonic() - start, 10)


if __name__ == "__main__":
    harness.main()
