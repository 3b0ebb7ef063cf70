"""Matrices that stay on the server: up, down, multiplied, deleted, evicted."""

import json
import os
import subprocess
import tempfile
import threading
import unittest

import grpc
import numpy as np

import harness
from cutting_proxy import CuttingProxy
from harness import pb

CODE = grpc.StatusCode


def crc32c(data):
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def header(name="", rows=0, cols=0, handle="", dtype=pb.BF16, ttl=0):
    return pb.UploadMatrixRequest(header=pb.UploadMatrixRequest.Header(
        name=name, handle=handle, rows=rows, cols=cols, dtype=dtype, ttl_seconds=ttl))


def join(handle):
    return header(handle=handle, dtype=pb.DTYPE_UNSPECIFIED)


def part(offset, data, crc=None):
    return pb.UploadMatrixRequest(range=pb.UploadMatrixRequest.Range(
        offset=offset, crc32c=crc32c(data) if crc is None else crc, data=data))


def upload(stub, bits, name=""):
    data = bits.tobytes()
    messages = [header(name, *bits.shape)]
    messages += [part(at, data[at:at + 4096]) for at in range(0, len(data), 4096)]
    return stub.UploadMatrix(iter(messages), timeout=30)


def download(stub, handle):
    chunks = list(stub.DownloadMatrix(pb.DownloadMatrixRequest(handle=handle), timeout=30))
    for chunk in chunks:
        assert crc32c(chunk.data) == chunk.crc32c
    return b"".join(chunk.data for chunk in chunks)


def by_handle(a, handle, **kwargs):
    return pb.MatmulRequest(a=harness.operand(a), b=pb.Operand(handle=handle), **kwargs)


class ResidentTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server("--resident-bytes=64KiB", unix=True)
        cls.context = harness.stub(cls.server.address)
        cls.stub = cls.context.__enter__()
        cls.rng = np.random.default_rng(7)

    @classmethod
    def tearDownClass(cls):
        cls.context.__exit__(None, None, None)
        code = cls.server.stop()
        cls.server.__exit__()
        assert code == 0, code

    def tearDown(self):
        for info in self.stub.ListMatrices(pb.ListMatricesRequest(), timeout=10).matrices:
            self.stub.DeleteMatrix(pb.DeleteMatrixRequest(handle=info.handle), timeout=10)
        samples = self.server.metrics()
        self.assertEqual(samples["tcgemm_resident_matrices"], 0)
        self.assertEqual(samples["tcgemm_resident_bytes"], 0)
        self.assertEqual(samples['tcgemm_pool_bytes{pool="resident",state="used"}'], 0)

    def matrix(self, rows, cols):
        return harness.normal_bf16(self.rng, rows, cols)

    def code(self, call):
        return harness.code_of(call)

    def test_a_handle_gives_the_same_bits_as_its_bytes(self):
        a, b = self.matrix(5, 33), self.matrix(33, 17)
        answer = upload(self.stub, b, "w")
        self.assertEqual((answer.handle, answer.complete), ("w", True))
        self.assertEqual(download(self.stub, "w"), b.tobytes())
        inline = self.stub.Matmul(harness.request(a, b), timeout=30)
        self.assertEqual(self.stub.Matmul(by_handle(a, "w"), timeout=30).d, inline.d)
        kept = self.stub.Matmul(by_handle(a, "w", output=pb.OutputTarget(handle="")), timeout=30)
        self.assertEqual((kept.d, kept.rows, kept.cols, len(kept.handle)), (b"", 5, 17, 32))
        self.assertEqual(download(self.stub, kept.handle), inline.d)
        samples = self.server.metrics()
        self.assertEqual(samples["tcgemm_resident_matrices"], 2)

    def test_alone_and_with_63_others_the_bits_are_the_same(self):
        b = self.matrix(64, 48)
        upload(self.stub, b, "w")
        operands = [self.matrix(1 + i % 4, 64) for i in range(64)]
        alone = [self.stub.Matmul(by_handle(a, "w"), timeout=30).d for a in operands]
        together = harness.in_threads(
            64, lambda i: self.stub.Matmul(by_handle(operands[i], "w"), timeout=30).d)
        self.assertEqual(together, alone)

    def test_handle_reuse_after_delete(self):
        old, new = self.matrix(4, 4), self.matrix(4, 6)
        upload(self.stub, old, "w")
        self.stub.DeleteMatrix(pb.DeleteMatrixRequest(handle="w"), timeout=10)
        for call in (lambda: self.stub.Matmul(by_handle(self.matrix(2, 4), "w"), timeout=10),
                     lambda: download(self.stub, "w"),
                     lambda: self.stub.UploadMatrix(iter([join("w")]), timeout=10),
                     lambda: self.stub.DeleteMatrix(pb.DeleteMatrixRequest(handle="w"),
                                                    timeout=10)):
            self.assertEqual(self.code(call), CODE.NOT_FOUND)
        upload(self.stub, new, "w")
        self.assertEqual(download(self.stub, "w"), new.tobytes())

    def test_two_uploads_of_one_name(self):
        b = self.matrix(16, 16)
        codes = harness.in_threads(8, lambda _: self.code(lambda: upload(self.stub, b, "w")))
        self.assertEqual(codes.count(CODE.OK), 1, codes)
        self.assertEqual(codes.count(CODE.ALREADY_EXISTS), 7, codes)
        self.assertEqual(download(self.stub, "w"), b.tobytes())

    def test_ranges_overlap_lie_outside_or_never_come(self):
        data = self.matrix(8, 8).tobytes()
        self.stub.UploadMatrix(iter([header("w", 8, 8), part(0, data[:80])]), timeout=10)
        self.assertEqual(self.code(lambda: self.stub.Matmul(
            by_handle(self.matrix(2, 8), "w"), timeout=10)), CODE.FAILED_PRECONDITION)
        self.assertEqual(self.code(lambda: download(self.stub, "w")), CODE.FAILED_PRECONDITION)
        for offset, bad in ((128, b"x"), (127, b"xy"), (-1, b"x"), (2**62, b"x"), (100, b"")):
            self.assertEqual(self.code(lambda: self.stub.UploadMatrix(
                iter([join("w"), part(offset, bad)]), timeout=10)), CODE.INVALID_ARGUMENT)
        self.assertEqual(self.code(lambda: self.stub.UploadMatrix(
            iter([join("w"), part(80, data[80:], crc=1)]), timeout=10)), CODE.DATA_LOSS)
        # What is there stays: the first 80 bytes of this one are not taken.
        answer = self.stub.UploadMatrix(
            iter([join("w"), part(0, bytes(64)), part(40, bytes(40) + data[80:])]), timeout=10)
        self.assertTrue(answer.complete)
        self.assertEqual([(r.offset, r.length) for r in answer.present], [(0, 128)])
        self.assertEqual(download(self.stub, "w"), data)

    def test_several_streams_fill_one_matrix(self):
        data = self.matrix(64, 64).tobytes()
        self.stub.UploadMatrix(iter([header("w", 64, 64)]), timeout=10)

        def fill(lane):
            parts = [part(at, data[at:at + 512]) for at in range(512 * lane, len(data), 2048)]
            return self.stub.UploadMatrix(iter([join("w"), *parts]), timeout=30)

        answers = harness.in_threads(4, fill)
        self.assertTrue(any(answer.complete for answer in answers), answers)
        self.assertEqual(download(self.stub, "w"), data)

    def test_another_callers_matrix_is_not_there(self):
        b = self.matrix(4, 4)
        upload(self.stub, b, "mine")
        with harness.stub(self.server.unix) as other:
            self.assertEqual(len(other.ListMatrices(pb.ListMatricesRequest()).matrices), 0)
            for call in (lambda: other.Matmul(by_handle(b, "mine"), timeout=10),
                         lambda: download(other, "mine"),
                         lambda: other.UploadMatrix(iter([join("mine")]), timeout=10),
                         lambda: other.DeleteMatrix(pb.DeleteMatrixRequest(handle="mine"))):
                self.assertEqual(self.code(call), CODE.NOT_FOUND)
            upload(other, self.matrix(4, 4), "mine")  # a name is each caller's own
            other.DeleteMatrix(pb.DeleteMatrixRequest(handle="mine"))
        self.assertEqual(download(self.stub, "mine"), b.tobytes())

    def test_eviction_under_pressure(self):
        a = self.matrix(1, 64)
        for i in range(12):  # 8 KiB each, 8 fit
            upload(self.stub, self.matrix(64, 64), f"m{i}")
            self.assertEqual(self.code(lambda: self.stub.Matmul(by_handle(a, "m0"), timeout=10)),
                             CODE.OK, "what is used stays")
        left = [m.handle for m in self.stub.ListMatrices(pb.ListMatricesRequest()).matrices]
        self.assertEqual(sorted(left), sorted(["m0"] + [f"m{i}" for i in range(5, 12)]))
        self.assertEqual(self.code(lambda: self.stub.Matmul(by_handle(a, "m1"), timeout=10)),
                         CODE.NOT_FOUND)
        with self.assertRaises(grpc.RpcError) as caught:
            self.stub.UploadMatrix(iter([header("big", 1 << 20, 1 << 10)]), timeout=10)
        self.assertEqual(caught.exception.code(), CODE.RESOURCE_EXHAUSTED)
        self.assertIn("65536 resident (--resident-bytes)", caught.exception.details())

    def test_delete_while_a_product_runs(self):
        b = self.matrix(128, 128)
        a = self.matrix(64, 128)
        expected = self.stub.Matmul(harness.request(a, b), timeout=30).d
        stop = threading.Event()
        seen = []

        def multiply():
            while not stop.is_set():
                try:
                    seen.append(self.stub.Matmul(by_handle(a, "w"), timeout=30).d == expected)
                except grpc.RpcError as error:
                    seen.append(error.code())

        threads = [threading.Thread(target=multiply) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            upload(self.stub, b, "w")
            self.stub.DeleteMatrix(pb.DeleteMatrixRequest(handle="w"), timeout=10)
        stop.set()
        for thread in threads:
            thread.join()
        self.assertLessEqual(set(seen), {True, CODE.NOT_FOUND, CODE.FAILED_PRECONDITION})

    def test_a_result_that_fails_leaves_nothing(self):
        upload(self.stub, self.matrix(4, 4), "w")
        request = by_handle(self.matrix(2, 5), "w", output=pb.OutputTarget(handle="d"))
        self.assertEqual(self.code(lambda: self.stub.Matmul(request, timeout=10)),
                         CODE.INVALID_ARGUMENT)
        self.assertEqual(self.code(lambda: download(self.stub, "d")), CODE.NOT_FOUND)

    def test_every_call_is_counted_once(self):
        before = harness.counted(self.server.metrics(), "UploadMatrix")
        upload(self.stub, self.matrix(4, 4), "w")
        self.code(lambda: upload(self.stub, self.matrix(4, 4), "w"))
        after = harness.counted(self.server.metrics(), "UploadMatrix")
        self.assertEqual(after["OK"], before.get("OK", 0) + 1)
        self.assertEqual(after["ALREADY_EXISTS"], before.get("ALREADY_EXISTS", 0) + 1)


    def test_the_list_has_pages(self):
        for name in ("c", "a", "b"):
            upload(self.stub, self.matrix(1, 1), name)

        def page(**kwargs):
            answer = self.stub.ListMatrices(pb.ListMatricesRequest(**kwargs), timeout=10)
            return [m.handle for m in answer.matrices], answer.next_page_token

        self.assertEqual(page(), (["a", "b", "c"], ""), "who knows no pages sees everything")
        self.assertEqual(page(page_size=2), (["a", "b"], "b"))
        self.assertEqual(page(page_size=2, page_token="b"), (["c"], ""))
        self.assertEqual(self.code(lambda: page(page_size=-1)), CODE.INVALID_ARGUMENT)

    def test_uploads_whose_client_was_killed_are_cancelled(self):
        folder = harness.tempfile.mkdtemp(prefix="tcgemm-test-")
        self.addCleanup(harness.shutil.rmtree, folder)
        path = os.path.join(folder, "a.npy")
        np.save(path, np.zeros((2048, 2048), np.float32))
        with harness.Server("--resident-bytes=512MiB") as server:
            # In the headers, at the first byte of the matrix, and on.
            for after in [*range(100, 700, 20), *range(1 << 10, 8 << 20, 1 << 19)]:
                with CuttingProxy(server.address) as proxy:
                    client = subprocess.Popen([harness.CLIENT, "--server", proxy.address, "upload",
                                               path, "--name", f"w{after}", "--lanes", "1"],
                                              stderr=subprocess.DEVNULL)
                    proxy.cut("up", after, client.kill)
                    client.wait(30)
            harness.wait_until(
                lambda: server.metrics()["tcgemm_inflight_requests"] == 0, what="all have ended")
            counted = harness.counted(server.metrics(), "UploadMatrix")
            self.assertEqual(set(counted), {"CANCELLED"}, counted)
            self.assertGreaterEqual(counted["CANCELLED"], 16, counted)

    def test_a_callers_share(self):
        with harness.Server("--resident-bytes=64KiB", "--resident-bytes-per-caller=16KiB",
                            unix=True) as server:
            with harness.stub(server.address) as ours, harness.stub(server.unix) as theirs:
                upload(theirs, self.matrix(64, 64), "t")
                for i in range(4):  # 8 KiB each, 2 fit the share
                    upload(ours, self.matrix(64, 64), f"m{i}")
                self.assertEqual([m.handle for m in ours.ListMatrices(
                    pb.ListMatricesRequest()).matrices], ["m2", "m3"])
                self.assertEqual(len(theirs.ListMatrices(pb.ListMatricesRequest()).matrices), 1)
                with self.assertRaises(grpc.RpcError) as caught:
                    upload(ours, self.matrix(128, 128), "big")
                self.assertIn("--resident-bytes-per-caller", caught.exception.details())


class PreloadTest(unittest.TestCase):
    def test_preloaded_and_the_command_line(self):
        rng = np.random.default_rng(8)
        b = rng.standard_normal((6, 5)).astype(np.float32)
        folder = os.path.join(harness.tempfile.mkdtemp(prefix="tcgemm-test-"))
        self.addCleanup(harness.shutil.rmtree, folder)
        path = os.path.join(folder, "b.npy")
        a_path, d_path = os.path.join(folder, "a.npy"), os.path.join(folder, "d.npy")
        np.save(path, b)
        np.save(a_path, rng.standard_normal((3, 6)).astype(np.float32))
        with harness.Server("--resident-bytes=1MiB", f"--preload=shared/b={path}",
                            unix=True) as server:
            for address in (server.address, server.unix):
                with harness.stub(address) as stub:
                    self.assertEqual(download(stub, "shared/b"), harness.to_bf16(b).tobytes())
                    self.assertEqual(harness.code_of(lambda: stub.DeleteMatrix(
                        pb.DeleteMatrixRequest(handle="shared/b"))), CODE.PERMISSION_DENIED)

            def run(*args):
                result = harness.client(*args, server=server.address)
                return result.returncode, result.stdout.strip(), result.stderr

            self.assertEqual(run("upload", a_path, "--name", "a")[:2], (0, "a"))
            self.assertEqual(run("upload", a_path, "--name", "a", "--resume")[0], 0)
            code, _, stderr = run("upload", a_path, "--name", "a")
            self.assertEqual(code, 4, stderr)
            self.assertIn("delete", stderr)
            code, handle, stderr = run("matmul", "@a", "@shared/b", "--keep")
            self.assertEqual((code, len(handle)), (0, 32), stderr)
            self.assertEqual(run("download", handle, d_path)[0], 0)
            with open(d_path, "rb") as file:
                first = file.read()
            self.assertEqual(run("matmul", a_path, "@shared/b", "-o", d_path)[0], 0)
            with open(d_path, "rb") as file:
                self.assertEqual(file.read(), first)
            self.assertIn('"preloaded":true', run("list", "--json")[1])
            self.assertEqual(run("delete", handle)[0], 0)
            code, _, stderr = run("delete", handle)
            self.assertEqual(code, 4)
            self.assertIn("list", stderr)
            self.assertEqual(server.stop(), 0)

    def test_tensors_of_a_safetensors_file(self):
        """fp32 is rounded; ':TENSOR' names one of several."""
        rng = np.random.default_rng(9)
        floats = rng.standard_normal((3, 4)).astype(np.float32)
        halves = harness.normal_bf16(rng, 5, 2)
        with tempfile.TemporaryDirectory(prefix="tcgemm-test-") as folder:
            path = os.path.join(folder, "model.safetensors")
            header = json.dumps({
                "layer.0": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]},
                "layer.1": {"dtype": "BF16", "shape": [5, 2], "data_offsets": [48, 68]}}).encode()
            with open(path, "wb") as file:
                file.write(len(header).to_bytes(8, "little") + header + floats.tobytes() +
                           halves.tobytes())
            with harness.Server(f"--preload=f={path}:layer.0", f"--preload=h={path}:layer.1",
                                unix=True) as server, harness.stub(server.address) as stub:
                self.assertEqual(download(stub, "f"), harness.to_bf16(floats).tobytes())
                self.assertEqual(download(stub, "h"), halves.tobytes())
            for name, words in ((f"{path}:layer.2", "no tensor 'layer.2'"),
                                (path, "2 tensors")):
                with harness.Server(f"--preload=w={name}", wait=False) as server:
                    self.assertEqual(server.wait(), 2)
                    self.assertIn(f"--preload w={name}: ", server.log())
                    self.assertIn(words, server.log())

    def test_a_preload_that_fails_names_the_file(self):
        for name in ("/nowhere/w.npy", "/nowhere/w.safetensors:t"):
            with harness.Server("--resident-bytes=1MiB", f"--preload=w={name}",
                                wait=False) as server:
                self.assertEqual(server.wait(), 2)
                self.assertIn(f"--preload w={name}: ", server.log())

    def test_without_a_budget_nothing_stays(self):
        with harness.Server("--resident-bytes=0") as server, harness.stub(server.address) as stub:
            with self.assertRaises(grpc.RpcError) as caught:
                upload(stub, np.zeros((2, 2), np.uint16), "w")
            self.assertEqual(caught.exception.code(), CODE.RESOURCE_EXHAUSTED)
            self.assertIn("--resident-bytes", caught.exception.details())


if __name__ == "__main__":
    harness.main()
