"""Shared memory: a stock client's region, who may use it, what it may do to it, and its end."""

import contextlib
import ctypes
import io
import json
import os
import random
import re
import subprocess
import sys
import threading
import unittest
import unittest.mock

import grpc
import numpy as np

import harness
import region_client
from harness import pb
from region_client import Region, footprint, put, request, result, used_bytes

CODE = grpc.StatusCode
FLAGS = ["--allow-shared-memory", "--shared-memory-bytes=16MiB",
         "--shared-memory-caller-bytes=12MiB", "--resident-bytes=1MiB"]
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2
NOBODY = 65533
LIBC = ctypes.CDLL(None, use_errno=True)


def punch(fd, offset, length):
    return LIBC.fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE,
                          ctypes.c_long(offset), ctypes.c_long(length))


class HeldFd(Region):
    """A region that keeps its descriptor."""

    def __init__(self, stub, size):
        kept = []
        with unittest.mock.patch("mmap.mmap", side_effect=self._keep(kept)):
            super().__init__(stub, size)
        self.fd = kept[0]

    @staticmethod
    def _keep(kept):
        real = region_client.EXAMPLE["mmap"].mmap

        def make(fd, size):
            kept.append(os.dup(fd))
            return real(fd, size)
        return make

    def close(self):
        super().close()
        os.close(self.fd)


def child(*args, user=None, **kwargs):
    """region_client.py in a process of its own."""
    who = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    return subprocess.Popen([sys.executable, region_client.__file__, *args], text=True,
                            stdout=subprocess.PIPE, **who, **kwargs)


class RegionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server(*FLAGS, unix=True)
        os.chmod(cls.server.folder, 0o755)
        for name in (cls.server.unix_path, cls.server.unix_path + ".regions"):
            os.chmod(name, 0o777)
        cls.context = harness.stub(cls.server.unix)
        cls.stub = cls.context.__enter__()
        cls.rng = np.random.default_rng(11)

    @classmethod
    def tearDownClass(cls):
        cls.context.__exit__(None, None, None)
        code = cls.server.stop()
        left = os.listdir(cls.server.folder)
        cls.server.__exit__()
        assert code == 0, code
        assert left == ["log"], left

    def tearDown(self):
        harness.wait_until(lambda: used_bytes(self.server) == 0, what="no region left")
        harness.wait_until(lambda: footprint(self.server)[1] == 0, what="no mapping left")
        self.assertTrue(self.server.alive())

    @contextlib.contextmanager
    def region(self, size=1 << 20, kind=Region):
        region = kind(self.stub, size)
        try:
            yield region
        finally:
            region.close()

    def matrix(self, rows, cols):
        return harness.normal_bf16(self.rng, rows, cols)

    def refused(self, call, code, words=""):
        with self.assertRaises(grpc.RpcError) as raised:
            call()
        self.assertEqual(raised.exception.code(), code, raised.exception.details())
        self.assertIn(words, raised.exception.details())
        return raised.exception

    def multiply(self, message):
        return self.stub.Matmul(message, timeout=30)

    def test_the_documents_example_runs(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            region_client.EXAMPLE["main"](self.server.unix)
        self.assertLess(float(out.getvalue().split()[-1]), 0.5)

    def test_the_same_bits_as_inline(self):
        with self.region() as region:
            for m, n, k in ((1, 1, 1), (17, 19, 23), (64, 64, 64), (33, 129, 65), (127, 96, 200)):
                a, b = self.matrix(m, k), self.matrix(k, n)
                for output in (pb.BF16, pb.FP32):
                    inline = self.multiply(harness.request(a, b, output)).d
                    for ld in (0, 256):
                        region.memory[:] = bytes(len(region.memory))
                        message = request(region, a, b, output=output, ld=ld)
                        answer = self.multiply(message)
                        self.assertEqual(answer.d, b"")
                        self.assertEqual((answer.rows, answer.cols, answer.dtype), (m, n, output))
                        self.assertEqual(result(region, answer), inline, (m, n, k, output, ld))
                        after = (1 << 18) + len(inline)
                        self.assertEqual(region.memory[after:after + 64], bytes(64))

    def test_transposed_and_at_odd_elements(self):
        with self.region() as region:
            a, b = self.matrix(40, 31), self.matrix(24, 40)
            want = pb.MatmulRequest(a=harness.operand(a, True), b=harness.operand(b, True))
            inline = self.multiply(want).d
            message = request(region, a, b, a_at=2, b_at=65538, d_at=131078, output=pb.BF16)
            message.a.transposed = message.b.transposed = True
            self.assertEqual(result(region, self.multiply(message), 131078), inline)

    def test_beside_handles_and_inline_bytes(self):
        a, b = self.matrix(9, 64), self.matrix(64, 33)
        want = self.multiply(harness.request(a, b)).d
        identity = harness.to_bf16(np.eye(64, dtype=np.float32))
        keep = harness.request(identity, b)
        keep.output.handle = ""
        kept = self.multiply(keep)
        with self.region() as region:
            shared = request(region, a, b, output=pb.BF16)
            by_handle = pb.Operand(handle=kept.handle)
            for message in (
                    pb.MatmulRequest(a=shared.a, b=by_handle, output=shared.output),
                    pb.MatmulRequest(a=harness.operand(a), b=by_handle, output=shared.output),
                    pb.MatmulRequest(a=harness.operand(a), b=shared.b, output=shared.output)):
                region.memory[1 << 18:1 << 19] = bytes(1 << 18)
                self.assertEqual(result(region, self.multiply(message)), want)
            self.assertEqual(self.multiply(pb.MatmulRequest(a=shared.a, b=by_handle)).d, want)
            stays = self.multiply(pb.MatmulRequest(
                a=shared.a, b=shared.b, output=pb.OutputTarget(handle="")))
            self.stub.DeleteMatrix(pb.DeleteMatrixRequest(handle=stays.handle), timeout=10)
        self.stub.DeleteMatrix(pb.DeleteMatrixRequest(handle=kept.handle), timeout=10)

    def test_many_at_once_over_several_connections(self):
        with self.region() as region:
            a, b = self.matrix(30, 64), self.matrix(64, 50)
            want = self.multiply(harness.request(a, b)).d
            first = request(region, a, b, output=pb.BF16)

            def work(i):
                at = (1 << 18) + i * 4096
                with harness.stub(self.server.unix) as stub:
                    for _ in range(20):
                        answer = stub.Matmul(pb.MatmulRequest(
                            a=first.a, b=first.b, output=region.target(at)), timeout=30)
                        if result(region, answer, at) != want:
                            return "wrong"
                return "right"
            self.assertEqual(harness.in_threads(8, work), ["right"] * 8)

    @unittest.skipUnless(os.getuid() == 0, "only root can become another user")
    def test_another_user_finds_nothing_and_fetches_nothing(self):
        with self.region() as region:
            token = os.urandom(16).hex()
            for what in (["multiply", region.name],
                         ["fetch", self.server.unix_path + ".regions", token]):
                with child(self.server.unix, *what, user=NOBODY) as other:
                    said = other.communicate(timeout=60)[0]
                self.assertRegex(said, "NOT_FOUND|no such token for this user")
            # The owner's token, unused, in another user's hands; then in the owner's.
            call, held = self.hold()
            path = self.server.unix_path + ".regions"
            with child(self.server.unix, "fetch", path, held.token.hex(), user=NOBODY) as other:
                self.assertIn("no such token for this user", other.communicate(timeout=60)[0])
            text, fds = region_client.fetch(path, held.token)
            self.assertEqual((text, len(fds)), ("OK", 1))
            os.close(fds[0])
            call.cancel()

    def hold(self, size=4096):
        """An open HoldRegion call, and its answer; the descriptor is not fetched."""
        ends = threading.Event()
        self.addCleanup(ends.set)

        def messages():
            yield pb.HoldRegionRequest(bytes=size)
            ends.wait()
        call = self.stub.HoldRegion(messages())
        return call, next(call)

    def test_tokens_are_guessed_in_vain_and_good_once(self):
        call, held = self.hold()
        self.assertEqual(len(held.token), 16)
        self.assertEqual(held.side_socket, self.server.unix_path + ".regions")
        flipped = bytes([held.token[0] ^ 1]) + held.token[1:]
        for guess in (bytes(16), os.urandom(16), flipped, b"\xff" * 16, held.region.encode()[:16]):
            text, fds = region_client.fetch(held.side_socket, guess)
            self.assertEqual(fds, [])
            self.assertIn("refused", text)
        self.assertEqual(region_client.fetch(held.side_socket, held.token)[0], "OK")
        self.assertIn("refused", region_client.fetch(held.side_socket, held.token)[0])
        unused, other = self.hold()
        for open_call in (call, unused):
            open_call.cancel()
        harness.wait_until(lambda: used_bytes(self.server) == 0)
        self.assertIn("refused", region_client.fetch(other.side_socket, other.token)[0])

    def test_connections_that_say_nothing(self):
        before = footprint(self.server)[0]
        path = self.server.unix_path + ".regions"
        silent = [region_client.side_connection(path) for _ in range(40)]
        for i, side in enumerate(silent[::2]):
            with contextlib.suppress(OSError):  # those beyond the limit are closed already
                side.send(b"x" * (i % 15))
        self.assertLessEqual(footprint(self.server)[0], before + 20)
        # 16 at most wait; after five seconds all are gone, and an honest client is served.
        harness.wait_until(lambda: footprint(self.server)[0] <= before, what="they are closed")
        for side in silent:
            side.close()
        with self.region() as region:
            self.assertEqual(region.memory[0], 0)

    def test_over_tcp_there_is_none(self):
        with harness.stub(self.server.address) as tcp:
            self.refused(lambda: Region(tcp, 4096), CODE.UNIMPLEMENTED, "unix socket")
            with self.region() as region:
                message = request(region, self.matrix(2, 2), self.matrix(2, 2))
                self.refused(lambda: tcp.Matmul(message, timeout=10), CODE.NOT_FOUND, "a.region")

    def test_lies_about_sizes_and_offsets(self):
        with self.region(4096) as region:
            a = b = self.matrix(4, 4)
            good = request(region, a, b, a_at=0, b_at=64, d_at=128)
            self.assertEqual(self.multiply(good).rows, 4)
            for offset in (-1, 1, 3, 4094, 4096, 2**31, 2**62, 2**63 - 2, -2**63):
                for name in ("a", "b", "output"):
                    message = pb.MatmulRequest()
                    message.CopyFrom(good)
                    getattr(message, name).region.offset = offset
                    self.refused(lambda m=message: self.multiply(m), CODE.INVALID_ARGUMENT, name)
            for change in ({"rows": 2**31 - 1}, {"ld": 2**31 - 1}, {"cols": 2**31 - 1},
                           {"rows": 2**31 - 1, "ld": 2**31 - 1}, {"rows": 2**40}, {"ld": 3}):
                message = pb.MatmulRequest()
                message.CopyFrom(good)
                for field, value in change.items():
                    setattr(message.a, field, value)
                self.refused(lambda m=message: self.multiply(m), CODE.INVALID_ARGUMENT, "a.")
            for d_at in (0, 28, 60, 92):
                message = pb.MatmulRequest()
                message.CopyFrom(good)
                message.output.region.offset = d_at
                self.refused(lambda m=message: self.multiply(m), CODE.INVALID_ARGUMENT, "overlap")
        for size in (0, -1, -2**63):
            self.refused(lambda s=size: Region(self.stub, s), CODE.INVALID_ARGUMENT, "bytes is")
        for size in (2**62, 2**63 - 1, (12 << 20) + 1):
            error = self.refused(lambda s=size: Region(self.stub, s), CODE.RESOURCE_EXHAUSTED,
                                 "shared-memory")
            self.assertNotIn("grpc-retry-pushback-ms", dict(error.trailing_metadata()))

    def test_budgets(self):
        with self.region(12 << 20):
            error = self.refused(lambda: Region(self.stub, 1), CODE.RESOURCE_EXHAUSTED, "caller")
            trailers = dict(error.trailing_metadata())
            self.assertIn("grpc-retry-pushback-ms", trailers)
            self.assertIn(b"RetryInfo", trailers["grpc-status-details-bin"])
            samples = self.server.metrics()
            self.assertEqual(samples['tcgemm_pool_bytes{pool="shared",state="used"}'], 12 << 20)
            self.assertEqual(samples['tcgemm_pool_bytes{pool="shared",state="free"}'], 4 << 20)
            info = self.stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=10)
            self.assertEqual((info.shared_memory_bytes, info.max_region_bytes), (16 << 20, 12 << 20))
        # Closed and opened again at once.
        for _ in range(10):
            with self.region(12 << 20):
                pass
        with contextlib.ExitStack() as stack:
            for _ in range(64):
                stack.enter_context(self.region(4096))
            self.refused(lambda: Region(self.stub, 1), CODE.RESOURCE_EXHAUSTED, "64 regions")

    def test_the_size_is_sealed(self):
        with self.region(1 << 16, HeldFd) as region:
            for size in (0, 4096, 1 << 17):
                with self.assertRaises(PermissionError):
                    os.ftruncate(region.fd, size)
            a, b = self.matrix(8, 8), self.matrix(8, 8)
            message = request(region, a, b, 0, 4096, 8192)
            self.assertEqual(result(region, self.multiply(message), 8192),
                             self.multiply(harness.request(a, b, pb.FP32)).d)

    def test_holes_punched_while_products_run(self):
        a, b = self.matrix(256, 512), self.matrix(512, 256)
        want = self.multiply(harness.request(a, b, pb.FP32)).d
        at = {"a_at": 0, "b_at": 1 << 18, "d_at": 1 << 19}
        with self.region(1 << 20, HeldFd) as region, self.region(1 << 20) as other:
            theirs = request(other, a, b, **at)
            message = request(region, a, b, **at)
            stop = threading.Event()

            def spoil():
                chance = random.Random(1)
                while not stop.is_set():
                    self.assertEqual(punch(region.fd, 4096 * chance.randrange(256), 8192), 0)
            spoiler = threading.Thread(target=spoil)
            spoiler.start()
            try:
                for _ in range(100):
                    self.assertEqual(self.multiply(message).rows, 256)
                    # Nobody else's result changes.
                    self.assertEqual(result(other, self.multiply(theirs), 1 << 19), want)
            finally:
                stop.set()
                spoiler.join()
            message = request(region, a, b, **at)
            self.assertEqual(result(region, self.multiply(message), 1 << 19), want)

    def test_a_region_that_has_ended_reads_as_zeros(self):
        region = Region(self.stub, 1 << 16)
        region.memory[:] = b"\x55" * (1 << 16)
        region.close()
        harness.wait_until(lambda: used_bytes(self.server) == 0)
        self.assertEqual(bytes(region.memory), bytes(1 << 16))
        with self.region(1 << 16) as fresh:
            self.assertEqual(bytes(fresh.memory), bytes(1 << 16))
        self.refused(lambda: self.multiply(request(region, self.matrix(2, 2), self.matrix(2, 2),
                                                   0, 4096, 8192)), CODE.NOT_FOUND, "a.region")

    def test_clients_killed_in_the_middle_of_their_work(self):
        chance = random.Random(5)
        plateau = None
        for killed in range(50):
            if killed % 5 == 0:
                children = [child(self.server.unix, "work") for _ in range(5)]
                for one in children:
                    self.addCleanup(one.kill)  # when the test fails
                    self.assertEqual(one.stdout.readline(), "working\n")
            # Killed at a random moment of its loop, while the others go on.
            until = self.products() + chance.randrange(40)
            harness.wait_until(lambda end=until: self.products() > end, what="products")
            one = children[killed % 5]
            one.kill()
            one.wait(30)
            one.stdout.close()
            if killed % 5 < 4:
                continue
            harness.wait_until(lambda: used_bytes(self.server) == 0, what="their regions are gone")
            if plateau is None:
                plateau = footprint(self.server)
        # gRPC's pool grows by itself, to twice the cores at most.
        harness.wait_until(lambda: footprint(self.server)[0] <= plateau[0], what="descriptors")
        self.assertEqual(footprint(self.server)[1], 0)
        self.assertLessEqual(footprint(self.server)[2], plateau[2] + 2)

    def products(self):
        return harness.counted(self.server.metrics()).get("OK", 0)

    def test_every_call_is_counted_once(self):
        before = harness.counted(self.server.metrics(), "HoldRegion")
        with self.region():
            pass
        call, _ = self.hold()
        call.cancel()
        harness.wait_until(lambda: used_bytes(self.server) == 0)

        def grown():
            after = harness.counted(self.server.metrics(), "HoldRegion")
            return {code: count - before.get(code, 0) for code, count in after.items()
                    if count != before.get(code, 0)}
        harness.wait_until(lambda: grown() == {"OK": 1, "CANCELLED": 1}, what="both are counted")


    def test_the_command_line(self):
        server = self.server.unix
        run = harness.client("matmul", "--random", "65x33x127", "--shared-memory", "--check",
                             "--json", server=server)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertTrue(json.loads(run.stdout)["check"]["ok"])
        run = harness.client("smoke", "--shared-memory", "--json", server=server)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertTrue(json.loads(run.stdout)["ok"])
        for extra, path in (((), "shared_memory"), (("--resident",), "shared_memory_resident")):
            run = harness.client("bench", "--shape", "64x64x64", "--requests", "50", "--warmup",
                                 "10ms", "--clients", "2", "--shared-memory", *extra, "--json",
                                 server=server)
            self.assertEqual(run.returncode, 0, run.stderr)
            report = json.loads(run.stdout)
            self.assertEqual((report["path"], report["succeeded"]), (path, 50))
            self.assertTrue(report["check"]["ok"])

    def test_the_command_lines_errors(self):
        product = ["matmul", "--random", "4x4x4", "--check", "--shared-memory"]
        run = harness.client(*product, server=self.server.address)
        self.assertEqual(run.returncode, 2)
        self.assertIn("unix:/path", run.stderr)
        run = harness.client("matmul", "--random", "4096x4096x64", "--shared-memory",
                             server=self.server.unix)
        self.assertEqual(run.returncode, 4)
        self.assertIn("shared-memory", run.stderr)
        run = harness.client("bench", "--resident", server=self.server.unix)
        self.assertEqual(run.returncode, 2)
        with harness.Server(unix=True) as off:
            run = harness.client(*product, server=off.unix)
            self.assertEqual(run.returncode, 4)
            self.assertIn("--allow-shared-memory", run.stderr)


class RegionServerTest(unittest.TestCase):
    def test_without_the_flag(self):
        with harness.Server(unix=True) as server:
            with harness.stub(server.unix) as stub:
                for call in (
                        lambda: Region(stub, 4096),
                        lambda: stub.Matmul(pb.MatmulRequest(
                            a=pb.Operand(rows=1, cols=1, dtype=pb.BF16,
                                         region=pb.RegionRef(region="x"))), timeout=10)):
                    with self.assertRaises(grpc.RpcError) as raised:
                        call()
                    self.assertEqual(raised.exception.code(), CODE.UNIMPLEMENTED)
                    self.assertIn("--allow-shared-memory", raised.exception.details())
            self.assertFalse(os.path.exists(server.unix_path + ".regions"))
            self.assertEqual(server.stop(), 0)

    def test_the_flag_needs_a_unix_socket_and_room_beside_it(self):
        for flags, words in ((["--allow-shared-memory"], "unix:"),
                             ([*FLAGS, f"--listen=unix:{'x' * 102}"], "unix socket path")):
            with harness.Server(*flags, wait=False) as server:
                self.assertIn(server.wait(), (2, 3))
                self.assertIn(words, server.log())

    def test_a_drain_under_load_fails_no_product_and_waits_for_no_region(self):
        rng = np.random.default_rng(2)
        for _ in range(5):
            with harness.Server(*FLAGS, unix=True) as server:
                with harness.stub(server.unix, [("grpc.enable_retries", 0)]) as stub:
                    region = Region(stub, 1 << 20)
                    message = request(region, harness.normal_bf16(rng, 96, 128),
                                      harness.normal_bf16(rng, 128, 64))
                    codes = []

                    def work(codes=codes, stub=stub, message=message):
                        while not codes or codes[-1] == CODE.OK:
                            codes.append(harness.code_of(
                                lambda: stub.Matmul(message, timeout=20)))
                    worker = threading.Thread(target=work)
                    worker.start()
                    harness.wait_until(lambda codes=codes: len(codes) > 20)
                    server.signal()
                    self.assertEqual(server.wait(20), 0)
                    worker.join()
                    self.assertEqual(set(codes), {CODE.OK, CODE.UNAVAILABLE})
                    with self.assertRaises(grpc.RpcError) as raised:
                        next(region.call)
                    self.assertEqual(raised.exception.code(), CODE.UNAVAILABLE)
                    self.assertIn("drained", raised.exception.details())
                match = re.search(r"admitted (\d+), completed (\d+), failed 0", server.log())
                self.assertIsNotNone(match, server.log())
                self.assertEqual(os.listdir(server.folder), ["log"])


if __name__ == "__main__":
    harness.main()
