"""Starts a real tcgemm-server on loopback and speaks to it like a stranger would."""

import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import grpc
import numpy as np

sys.path.insert(0, os.environ["TCGEMM_STUBS"])
import health_pb2  # noqa: E402
import health_pb2_grpc  # noqa: E402
import matmul_pb2 as pb  # noqa: E402
import matmul_pb2_grpc as pb_grpc  # noqa: E402

BIN = os.environ["TCGEMM_BIN"]
SERVER = os.path.join(BIN, "tcgemm-server")
CLIENT = os.path.join(BIN, "tcgemm-client")

# One server's budgets in the tests: small enough for a 4 GiB machine.
SMALL_BUDGETS = ["--pinned-bytes=512MiB", "--queue-bytes=512MiB",
                 "--max-message-bytes=128MiB"]


class Server:
    """A server process. Use as a context manager; `stop` returns the exit code. `prefix` is a command
    that becomes the one that follows it."""

    def __init__(self, *flags, env=None, unix=False, defaults=True, wait=True, prefix=()):
        self.folder = tempfile.mkdtemp(prefix="tcgemm-test-")
        self.unix_path = os.path.join(self.folder, "s.sock")
        args = [*prefix, SERVER, *flags]
        if not any(f.startswith("--metrics-listen") for f in flags):
            args.append("--metrics-listen=127.0.0.1:0")
        if not any(f.startswith("--listen") for f in flags):
            args.append("--listen=127.0.0.1:0")
            if unix:
                args.append(f"--listen=unix:{self.unix_path}")
        if defaults:
            args += [b for b in SMALL_BUDGETS
                     if not any(f.split("=")[0] == b.split("=")[0] for f in flags)]
        self.log_path = os.path.join(self.folder, "log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=log,
                                            env={**os.environ, **(env or {})}, text=True)
        self.stdout = []
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if wait:
            self.wait_ready()

    def _read(self):
        for line in self.process.stdout:
            self.stdout.append(line.rstrip("\n"))
            self._lines.put(self.stdout[-1])
        self._lines.put(None)

    def wait_ready(self, timeout=60):
        line = self._lines.get(timeout=timeout)
        if line is None:
            raise AssertionError(f"server ended before READY:\n{self.log()}")
        match = re.fullmatch(r"READY grpc=(\S+) metrics=(\S+) device=(\S+)", line)
        if match is None:
            raise AssertionError(f"unexpected first line {line!r}\n{self.log()}")
        self.addresses = match[1].split(",")
        self.address = self.addresses[0]
        self.metrics_address = match[2]
        self.device = match[3]

    @property
    def unix(self):
        return f"unix:{self.unix_path}"

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def rss(self):
        return int(re.search(r"VmRSS:\s+(\d+) kB", self._status())[1]) * 1024

    def peak_rss(self):
        return int(re.search(r"VmHWM:\s+(\d+) kB", self._status())[1]) * 1024

    def _status(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return status.read()

    def get(self, path):
        """(status, body) of an HTTP GET on the metrics port."""
        try:
            with urllib.request.urlopen(f"http://{self.metrics_address}{path}",
                                        timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self):
        """{'name{a="b"}': value} of every sample."""
        samples = {}
        for line in self.get("/metrics")[1].splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                samples[name] = float(value)
        return samples

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, timeout=60):
        code = self.process.wait(timeout)
        self._reader.join(10)
        return code

    def stop(self):
        self.signal()
        return self.wait()

    def alive(self):
        return self.process.poll() is None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.alive():
            self.process.kill()
            self.process.wait(30)
        self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def stub(address, options=(), stub_class=pb_grpc.MatmulServiceStub):
    """A stock stub on a connection of its own."""
    own = [("grpc.use_local_subchannel_pool", 1), *options]
    with grpc.insecure_channel(address, options=own) as channel:
        yield stub_class(channel)


def health_stub(address):
    return stub(address, stub_class=health_pb2_grpc.HealthStub)


def client(*args, server=None, timeout=120, env=None):
    """Runs tcgemm-client; the completed process with text output."""
    address = [] if server is None else ["--server", server]
    return subprocess.run([CLIENT, *address, *args], capture_output=True, text=True,
                          timeout=timeout, env={**os.environ, **(env or {})}, check=False)


def to_bf16(x):
    """float32 array → uint16 bit patterns, rounded to nearest even (finite values)."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def normal_bf16(rng, rows, cols):
    return to_bf16(rng.standard_normal((rows, cols), dtype=np.float32))


def operand(bits, transposed=False):
    rows, cols = bits.shape
    return pb.Operand(rows=rows, cols=cols, dtype=pb.BF16, transposed=transposed,
                      inline=np.ascontiguousarray(bits).tobytes())


def request(a, b, output=pb.BF16, **kwargs):
    return pb.MatmulRequest(a=operand(a), b=operand(b), output_dtype=output, **kwargs)


def random_request(rng, m, n, k, output=pb.BF16):
    return request(normal_bf16(rng, m, k), normal_bf16(rng, k, n), output)


def close_enough(test, req, response):
    """D against float64, with room for fp32 accumulation and the output's rounding."""
    a = from_bf16(np.frombuffer(req.a.inline, np.uint16)).reshape(req.a.rows, req.a.cols)
    b = from_bf16(np.frombuffer(req.b.inline, np.uint16)).reshape(req.b.rows, req.b.cols)
    a = a.T if req.a.transposed else a
    b = b.T if req.b.transposed else b
    exact = a.astype(np.float64) @ b.astype(np.float64)
    if response.dtype == pb.FP32:
        d = np.frombuffer(response.d, np.float32).reshape(exact.shape)
        slack = 0.0
    else:
        d = from_bf16(np.frombuffer(response.d, np.uint16)).reshape(exact.shape)
        slack = 2.0**-8
    magnitude = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    bound = slack * np.abs(exact) + a.shape[1] * 2.0**-23 * magnitude + 1e-30
    worst = np.max(np.abs(d - exact) / bound)
    test.assertLessEqual(worst, 1.0)


def wait_until(condition, timeout=20, what="condition", pause=0.01):
    """Polls `condition` (a test of another process has nothing to wait on)."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(pause)
    raise AssertionError(f"{what} did not hold within {timeout} s")


def code_of(call):
    """The grpc.StatusCode that `call()` ends with."""
    try:
        call()
        return grpc.StatusCode.OK
    except grpc.RpcError as error:
        return error.code()


def in_threads(count, work):
    """Runs work(i) in `count` threads that start together; results in order."""
    barrier = threading.Barrier(count)
    results = [None] * count

    def run(i):
        barrier.wait()
        try:
            results[i] = work(i)
        except BaseException as error:  # pylint: disable=broad-except
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def counted(samples, method="Matmul"):
    """{code: count} of tcgemm_requests_total for a method, zeros left out."""
    found = {}
    for name, value in samples.items():
        match = re.fullmatch(r"tcgemm_requests_total\{(.*)\}", name)
        if match and value:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[1]))
            if labels["method"] == method:
                found[labels["code"]] = int(value)
    return found


def main():
    unittest.main(verbosity=2)
