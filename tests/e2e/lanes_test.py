"""One matrix or product over several connections: the same bits, whatever breaks on the way."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import unittest

import numpy as np

import harness
from cutting_proxy import CuttingProxy

MIB = 1 << 20


class LanesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="tcgemm-test-")
        cls.server = harness.Server("--resident-bytes=256MiB", unix=True)
        rng = np.random.default_rng(11)
        # 24 MiB, little work, 12 MiB.
        cls.a = cls.save("a", rng.standard_normal((3000, 4100), dtype=np.float32))
        cls.b = cls.save("b", rng.standard_normal((4100, 2001), dtype=np.float32)[:, :2001])

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        cls.server.__exit__()
        shutil.rmtree(cls.folder)
        assert code == 0, code

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder, name + ".npy")

    @classmethod
    def save(cls, name, array):
        np.save(cls.path(name), array)
        return cls.path(name)

    def tearDown(self):
        self.nothing_stays(self.server)

    def nothing_stays(self, server):
        def gone():
            samples = server.metrics()
            return (samples["tcgemm_resident_matrices"] == 0 and
                    samples['tcgemm_pool_bytes{pool="resident",state="used"}'] == 0)
        harness.wait_until(gone, what="no temporary matrix is left")

    def run_client(self, *args, server=None, code=0):
        result = harness.client(*args, server=server or self.server.address)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def product(self, name, *args, server=None):
        """The bytes of D's file, and the command's JSON."""
        result = self.run_client("matmul", self.a, self.b, "-o", self.path(name), "--output",
                                 "fp32", "--json", *args, server=server)
        with open(self.path(name), "rb") as file:
            return file.read(), json.loads(result.stdout)

    def test_the_bits_are_those_of_one_connection(self):
        one, _ = self.product("d1", "--lanes", "1")
        for address in (self.server.address, self.server.unix):
            for lanes in (2, 3, 8):
                several, info = self.product("d", "--lanes", str(lanes), server=address)
                self.assertEqual(info["lanes"], lanes)
                self.assertTrue(several == one, (address, lanes))

    def test_shapes_with_fewer_rows_than_lanes(self):
        for shape in ("1x1x1", "3x2x5", "1x3000x1", "2x1x70000"):
            result = self.run_client("matmul", "--random", shape, "--lanes", "8", "--check",
                                     "--transpose-a", "--transpose-b")
            self.assertIn("right", result.stdout)

    def test_every_lane_is_a_connection(self):
        with CuttingProxy(self.server.address) as proxy:
            self.product("d", "--lanes", "4", server=proxy.address)
            self.assertEqual(proxy.connections, 4)

    def test_lanes_that_are_cut_are_made_good(self):
        one, _ = self.product("d1", "--lanes", "1")
        with CuttingProxy(self.server.address) as proxy:
            proxy.cut("up", 3 * MIB)
            proxy.cut("up", 20 * MIB)
            proxy.cut("down", 2 * MIB)
            proxy.cut("down", 9 * MIB)
            several, _ = self.product("d", "--lanes", "3", server=proxy.address)
            self.assertTrue(several == one)
            self.assertEqual(proxy.pending(), 0)
            # What was there was not sent again: less than another half.
            self.assertLess(proxy.passed["up"], 60 * MIB)

    def test_a_server_that_is_killed_is_replaced_by_another(self):
        one, _ = self.product("d1", "--lanes", "1")
        with harness.Server("--resident-bytes=256MiB") as first, \
                CuttingProxy(first.address) as proxy:
            def replace():
                first.process.kill()
                first.process.wait(30)
                proxy.target = self.server.address
                proxy.cut_all()
            proxy.cut("up", 10 * MIB, replace)
            several, _ = self.product("d", "--lanes", "3", server=proxy.address)
            self.assertTrue(several == one)
            self.assertEqual(proxy.pending(), 0)

    def test_a_named_upload_goes_on_over_broken_connections(self):
        with CuttingProxy(self.server.address) as proxy:
            for lanes in ("1", "3"):
                # The first ends before any answer: the name is then this upload's own.
                for after in (100, 5 * MIB, 12 * MIB):
                    proxy.cut("up", after)
                self.run_client("upload", self.a, "--name", "w", "--lanes", lanes,
                                server=proxy.address)
                self.assertEqual(proxy.pending(), 0)
                proxy.cut("down", 4 * MIB)
                proxy.cut("down", 15 * MIB)
                self.run_client("download", "w", self.path("w"), "--lanes", lanes,
                                server=proxy.address)
                self.assertEqual(proxy.pending(), 0)
                sent = harness.to_bf16(np.load(self.a))
                with open(self.path("w"), "rb") as file:
                    self.assertTrue(file.read().endswith(sent.tobytes()))
                self.run_client("delete", "w", server=proxy.address)

    def test_somebody_elses_name_is_not_resumed(self):
        self.run_client("upload", self.b, "--name", "w")
        with CuttingProxy(self.server.address) as proxy:
            proxy.cut("up", 100)
            result = self.run_client("upload", self.b, "--name", "w", server=proxy.address, code=4)
            self.assertIn("ALREADY_EXISTS", result.stderr)
        self.run_client("delete", "w")

    def test_a_client_that_is_killed_leaves_what_dies(self):
        """Killed while its operands travel: they stay for their time to live, and no longer."""
        with CuttingProxy(self.server.address) as proxy:
            client = subprocess.Popen(
                [harness.CLIENT, "--server", proxy.address, "--timeout", "1s", "matmul", self.a,
                 self.b, "-o", self.path("d"), "--lanes", "3"], stderr=subprocess.DEVNULL)
            proxy.cut("up", 8 * MIB, lambda: client.send_signal(signal.SIGKILL))
            self.assertEqual(client.wait(60), -signal.SIGKILL)
        with harness.stub(self.server.address) as stub:
            left = stub.ListMatrices(harness.pb.ListMatricesRequest(), timeout=10).matrices
            self.assertTrue(left)
            for matrix in left:
                self.assertRegex(matrix.handle, "^lanes/[0-9a-f]{32}/[ab]$")
                stub.DeleteMatrix(harness.pb.DeleteMatrixRequest(handle=matrix.handle), timeout=10)

    def test_bench_over_lanes(self):
        result = self.run_client("--json", "bench", "--shape", "512x512x512", "--lanes", "3",
                                 "--clients", "2", "--requests", "20", "--warmup", "0s")
        self.assertEqual(json.loads(result.stdout)["errors"], {})

    def test_a_number_of_lanes_has_limits(self):
        for lanes in ("0", "9", "-1", "many"):
            self.run_client("matmul", "--random", "1x1x1", "--lanes", lanes, code=2)
        self.run_client("matmul", "@a", "@b", "--keep", "--lanes", "2", code=2)


class WithoutResidentMemoryTest(unittest.TestCase):
    def test_lanes_fall_back_unless_asked_for(self):
        with harness.Server("--resident-bytes=0") as server:
            def run(*args):
                return harness.client("-v", "matmul", "--random", "6000x8x6000", *args,
                                      server=server.address)
            automatic = run()
            self.assertEqual(automatic.returncode, 0, automatic.stderr)
            self.assertIn("over 1 connection", automatic.stderr)
            if len(os.sched_getaffinity(0)) >= 4:
                self.assertIn("not over several connections: RESOURCE_EXHAUSTED", automatic.stderr)
                self.assertIn("--resident-bytes", automatic.stderr)
            asked = run("--lanes", "2")
            self.assertEqual(asked.returncode, 4, asked.stderr)
            self.assertIn("--resident-bytes", asked.stderr)


if __name__ == "__main__":
    harness.main()
