"""tcgemm-client's commands and exit codes against a real server."""

import json
import os
import struct
import tempfile
import unittest

import numpy as np

import harness


def write_safetensors(path, tensors):
    """{name: (dtype, array)} by hand, as the format's page describes it."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, array) in tensors.items():
        begin = len(data)
        data += np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path, name):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entry = json.loads(file.read(length))[name]
        assert entry["dtype"] == "F32"
        return np.frombuffer(file.read(), np.float32).reshape(entry["shape"])


class CliTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server(unix=True)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def run_client(self, *args, expect=0, server=None):
        result = harness.client(*args, server=server or self.server.address)
        self.assertEqual(result.returncode, expect, result.stdout + result.stderr)
        return result

    def test_smoke_table_and_json(self):
        table = self.run_client("smoke").stdout
        self.assertIn("1024", table)
        report = json.loads(self.run_client("--json", "smoke", server=self.server.unix).stdout)
        self.assertTrue(report["ok"])
        self.assertEqual(report["device"], self.server.device)
        shapes = {(row["m"], row["n"], row["k"]) for row in report["rows"]}
        self.assertLessEqual({(1, 1, 1), (1024, 1024, 1024)}, shapes)
        self.assertEqual({row["layout"] for row in report["rows"]}, {"NN", "NT", "TN", "TT"})
        self.assertEqual({row["output"] for row in report["rows"]}, {"bf16", "fp32"})
        for row in report["rows"]:
            self.assertLessEqual(row["max_error_ratio"], 1.0, row)
            self.assertTrue(row["ok"])
            self.assertGreater(row["ms"], 0)

    def test_info_and_health(self):
        self.assertIn("cpu", self.run_client("info").stdout)
        info = json.loads(self.run_client("--json", "info").stdout)
        self.assertEqual(info["device"], self.server.device)
        self.run_client("health")
        self.run_client("health", server=self.server.unix)

    def test_the_fastest_reduction_is_right_and_no_streams(self):
        self.run_client("matmul", "--random", "16x24x4100", "--reduction", "fastest", "--check")
        self.run_client("matmul", "--random", "16x24x41", "--reduction", "fastest", "--stream",
                        expect=2)
        self.run_client("matmul", "--random", "16x24x41", "--reduction", "slowest", expect=2)

    def test_matmul_then_check_and_a_wrong_result(self):
        rng = np.random.default_rng(3)
        with tempfile.TemporaryDirectory() as folder:
            a, b, d = (os.path.join(folder, name + ".npy") for name in "abd")
            np.save(a, rng.standard_normal((40, 30), dtype=np.float32))
            np.save(b, np.asfortranarray(rng.standard_normal((30, 50), dtype=np.float32)))
            self.run_client("matmul", a, b, "-o", d, "--output", "fp32")
            result = np.load(d)
            self.assertEqual((result.dtype, result.shape), (np.dtype("<f4"), (40, 50)))
            self.run_client("check", a, b, d)
            result[7, 9] += 1
            np.save(d, result)
            self.assertIn("7", self.run_client("check", a, b, d, expect=1).stdout)

    def test_safetensors_beside_npy(self):
        rng = np.random.default_rng(4)
        a = rng.standard_normal((40, 30), dtype=np.float32)
        b = harness.normal_bf16(rng, 30, 50)
        with tempfile.TemporaryDirectory() as folder:
            both, d, npy = (os.path.join(folder, name)
                            for name in ("both.safetensors", "d.safetensors", "a.npy"))
            write_safetensors(both, {"layers.0:a": ("F32", a), "b": ("BF16", b),
                                     "ids": ("I64", np.arange(3))})
            np.save(npy, a)
            self.run_client("matmul", f"{both}:layers.0:a", f"{both}:b", "-o", f"{d}:out",
                            "--output", "fp32")
            result = read_safetensors(d, "out")
            exact = harness.from_bf16(harness.to_bf16(a)).astype(float) @ harness.from_bf16(b)
            np.testing.assert_allclose(result, exact, rtol=1e-4, atol=1e-4)
            self.run_client("check", npy, f"{both}:b", d)
            wrong = result.copy()
            wrong[7, 9] += 1
            write_safetensors(d, {"out": ("F32", wrong)})
            self.assertIn("7", self.run_client("check", npy, f"{both}:b", d, expect=1).stdout)
            # No name, where there are several; none of that name; the operands' own file.
            for args, words in ((["matmul", both, both, "-o", d], "'layers.0:a'"),
                                (["matmul", f"{both}:x", f"{both}:b", "-o", d], "no tensor 'x'"),
                                (["matmul", f"{both}:b", npy, "-o", f"{both}:d"], "operand's file"),
                                (["check", f"{both}:ids", npy, d], "'I64'")):
                with self.subTest(args):
                    self.assertIn(words, self.run_client(*args, expect=2).stderr)

    def test_bench_counts_what_the_server_counts(self):
        with harness.Server() as server:
            for flags, loop in ((["--clients", "3", "--connections", "2"], "closed"),
                                (["--rate", "500", "--clients", "4"], "open")):
                before = harness.counted(server.metrics()).get("OK", 0)
                run = self.run_client("bench", "--json", "--shape", "64x48x32", "--requests", "200",
                                      "--warmup", "50ms", "--output", "fp32", *flags,
                                      server=server.address)
                self.assertEqual(run.stderr, "")  # no progress where nobody watches
                report = json.loads(run.stdout)
                after = harness.counted(server.metrics())
                self.assertEqual(list(after), ["OK"])
                self.assertEqual(report["loop"], loop)
                self.assertEqual(report["succeeded"], 200)
                self.assertGreater(report["warmup_requests"], 0)
                self.assertEqual(report["sent"] + report["warmup_requests"], after["OK"] - before)
                self.assertEqual(report["errors"], {})
                self.assertEqual(report["device"], server.device)
                self.assertTrue(report["check"]["ok"])
                self.assertTrue(report["ok"])
                latency = report["latency_ms"]
                order = [latency[p] for p in ("p50", "p90", "p99", "p99_9", "max")]
                self.assertEqual(order, sorted(order))
                self.assertGreater(order[0], report["stages_p50_ms"]["kernel"])
                self.assertGreater(report["requests_per_s"], 0)
                self.assertAlmostEqual(report["requests_per_s"] * report["elapsed_s"], 200, 3)

    def test_bench_counts_refusals(self):
        with harness.Server("--max-message-bytes=1MiB") as small:
            run = self.run_client("bench", "--json", "--shape", "1024x1024x1024", "--requests", "5",
                                  "--warmup", "0s", expect=4, server=small.address)
            report = json.loads(run.stdout)
            self.assertEqual(report["errors"], {"RESOURCE_EXHAUSTED": 5})
            self.assertIsNone(report["check"])
            self.assertIn("--max-message-bytes", run.stderr)
        self.run_client("--timeout", "2s", "bench", expect=3, server="127.0.0.1:1")

    def test_unreachable_server_says_what_to_do(self):
        # Port 1 on loopback: nothing listens there.
        result = self.run_client("--timeout", "3s", "info", expect=3, server="127.0.0.1:1")
        self.assertIn("127.0.0.1:1", result.stderr)
        self.assertIn("--server", result.stderr)
        self.run_client("--timeout", "3s", "health", expect=3, server="unix:/nonexistent/socket")

    def test_usage_errors(self):
        for args in (["nonsense"], ["matmul"], ["--timeout", "soon", "info"],
                     ["bench", "--shape", "1x2"], ["bench", "--duration", "10"],
                     ["bench", "--clients", "2", "--connections", "3"], ["bench", "--rate", "0"],
                     ["matmul", "/nonexistent/a.npy", "/nonexistent/b.npy", "-o", "x.npy"]):
            with self.subTest(args):
                self.assertTrue(self.run_client(*args, expect=2).stderr)

    def test_refused_size_names_the_limit(self):
        with harness.Server("--max-message-bytes=1MiB", "--resident-bytes=0") as small:
            result = self.run_client("matmul", "--random", "1024x1024x1024",
                                     expect=4, server=small.address)
            self.assertIn("--max-message-bytes", result.stderr)


if __name__ == "__main__":
    harness.main()
