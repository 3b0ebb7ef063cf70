"""How often the server copies the bytes of a matrix: operands once on their way in, D never on its
way out, and nothing in shared memory. copy_counter.cc, preloaded, counts calls of memcpy and memmove of
4 KiB and more, in gRPC's libraries too; the kernel's copies (recv, send) are none of those."""

import collections
import os
import re
import struct
import subprocess
import tempfile
import unittest

import numpy as np

import harness
import region_client
import stream_test
from harness import pb

COUNTED = os.environ["TCGEMM_COUNTED"]
SITE = struct.Struct("=QQQ")
SLACK = 1.02
# Where a piece of gRPC's memory ends within a row, what is below 4 KiB is not counted.
SEEN = 0.75
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Counter:
    """The table of a server that has copy_counter.cc loaded."""

    def __init__(self, server, path):
        self.path = path
        with open(f"/proc/{server.process.pid}/maps", encoding="utf-8") as maps:
            self.maps = [(*(int(x, 16) for x in re.match(r"(\w+)-(\w+)", line).groups()),
                          int(line.split()[2], 16), line.split()[-1])
                         for line in maps if " r-xp " in line]
        self.before = self.read()

    def read(self):
        with open(self.path, "rb") as file:
            return {caller: (calls, size)
                    for caller, calls, size in SITE.iter_unpack(file.read()) if caller}

    def name(self, caller):
        """The function that called, as far as addr2line knows it."""
        for start, end, offset, module in self.maps:
            if start <= caller < end:
                at = hex(caller - 1 - start + offset)
                found = subprocess.run(["addr2line", "-Cfpe", module, at], capture_output=True,
                                       text=True, check=False).stdout.strip()
                return f"{os.path.basename(module)}+{at} {found}"
        return hex(caller)

    def since(self):
        """(bytes, what they are by caller) since the last time."""
        now = self.read()
        grown = {caller: size - self.before.get(caller, (0, 0))[1]
                 for caller, (_, size) in now.items()}
        self.before = now
        sites = collections.Counter({self.name(c): size for c, size in grown.items() if size})
        return sum(grown.values()), "\n".join(f"{size:>12} {name}"
                                              for name, size in sites.most_common())


class CopiesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="tcgemm-test-")
        path = os.path.join(cls.folder.name, "copies")
        harness.SERVER = os.path.join(COUNTED, "tcgemm-server-counted")
        cls.server = harness.Server(
            "--device=cpu", "--allow-shared-memory", "--resident-bytes=64MiB", unix=True,
            env={"LD_PRELOAD": os.path.join(COUNTED, "libtcgemm_copy_counter.so"),
                 "TCGEMM_COPY_COUNTER": path})
        cls.counter = Counter(cls.server, path)
        rng = np.random.default_rng(23)
        # 10 MiB in, 8 MiB out. B's rows are copied one by one: 8 KiB, so that what is left of one
        # beside the end of a piece is seldom too little to be counted.
        cls.a = harness.normal_bf16(rng, 1024, 1024)
        cls.b = harness.normal_bf16(rng, 1024, 4096)
        cls.in_bytes = cls.a.nbytes + cls.b.nbytes
        cls.request = harness.request(cls.a, cls.b)
        with harness.stub(cls.server.address, OPTIONS) as stub:
            cls.d = stub.Matmul(cls.request, timeout=60).d

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        cls.server.__exit__()
        cls.folder.cleanup()
        assert code == 0, code

    def setUp(self):
        self.counter.since()

    def check(self, copied, sites, at_least, at_most):
        print(f"{self.id()}: copied {copied}, in {self.in_bytes}\n{sites}")
        self.assertGreaterEqual(copied, at_least, f"the counter sees nothing\n{sites}")
        self.assertLessEqual(copied, at_most, sites)

    def unary(self, address):
        with harness.stub(address, OPTIONS) as stub:
            self.assertEqual(stub.Matmul(self.request, timeout=60).d, self.d)
        self.check(*self.counter.since(), SEEN * self.in_bytes, SLACK * self.in_bytes)

    def test_unary_over_tcp(self):
        self.unary(self.server.address)

    def test_unary_over_unix(self):
        self.unary(self.server.unix)

    def test_stream(self):
        """Rows of A and B once; D leaves from where it was made."""
        for address in (self.server.address, self.server.unix):
            with harness.stub(address, OPTIONS) as stub:
                d = stream_test.multiply(stub, self.a, self.b, output=pb.BF16)
            self.assertEqual(d, self.d)
            self.check(*self.counter.since(), SEEN * self.in_bytes, SLACK * self.in_bytes)

    def test_resident_matrices(self):
        """Once into the matrix, once out of it, and none by handle."""
        path = os.path.join(self.folder.name, "b.npy")
        np.save(path, harness.from_bf16(self.b))

        def run(*args):
            done = harness.client(*args, server=self.server.unix)
            self.assertEqual(done.returncode, 0, done.stderr)
            return self.counter.since()
        size = self.b.nbytes
        self.check(*run("upload", path, "--name", "b"), SEEN * size, SLACK * size)
        self.check(*run("matmul", "@b", "@b", "--transpose-b", "-o", path), 0, (SLACK - 1) * size)
        self.check(*run("download", "b", path), SEEN * size, SLACK * size)
        self.check(*run("delete", "b"), 0, 0)

    def test_shared_memory(self):
        with harness.stub(self.server.unix) as stub:
            region = region_client.Region(stub, 32 << 20)
            a_at, b_at, d_at = 0, 4 << 20, 16 << 20
            message = region_client.request(region, self.a, self.b, a_at, b_at, d_at, pb.BF16)
            response = stub.Matmul(message, timeout=60)
            self.assertEqual(region_client.result(region, response, d_at), self.d)
            region.close()
        self.check(*self.counter.since(), 0, (SLACK - 1) * self.in_bytes)





if __name__ == "__main__":
    harness.main()
