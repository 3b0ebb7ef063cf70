"""Two servers behind one name: what docs/OPERATIONS.md promises under "Several servers". Its service
config is read from there."""

import os
import re
import signal
import subprocess
import sys
import threading
import unittest

import grpc
import numpy as np

import harness
import replica_network as network

TARGET = f"dns:///{network.NAME}:{network.PORT}"
DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "OPERATIONS.md")
CALLS_AT_ONCE = 16
# Each small product waits that long for company on server a: it has some whenever it is killed.
SLOW = "--max-queue-delay-us=100000"
SMALL = (64, 64, 64)
# Beyond the 256 KiB that gRPC keeps of a call by default, and little work.
LARGE = (1, 256, 1024)


def documented_config():
    with open(DOCS, encoding="utf-8") as file:
        section = re.search(r"(?ms)^## Several servers\n(.*?)^## ", file.read())[1]
    return re.search(r"(?s)```json\n(.*?)```", section)[1]


def replica(name, *flags):
    return harness.Server(
        f"--listen={network.ADDRESS[name]}:{network.PORT}", "--insecure-listen-any",
        f"--metrics-listen={network.ADDRESS[name]}:{network.METRICS_PORT}", "--drain-delay=2s",
        "--pinned-bytes=64MiB", "--queue-bytes=64MiB", "--max-message-bytes=8MiB",
        "--resident-bytes=0", "--cpu-backend=plain", "--cpu-threads=1", *flags,
        prefix=network.at(name), wait=False)


def served(server):
    return harness.counted(server.metrics()).get("OK", 0)


class Load:
    """Threads that call until told to stop, each code counted."""

    def __init__(self, stub, request, threads=4):
        self.codes = {}
        self._stub, self._request = stub, request
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self):
        while not self._stop.is_set():
            code = harness.code_of(lambda: self._stub.Matmul(self._request, timeout=20))
            with self._lock:
                self.codes[code.name] = self.codes.get(code.name, 0) + 1

    def finish(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.codes


@unittest.skipIf(network.missing() is not None, network.missing())
class ReplicasTest(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(3)
        names = network.NameServer()
        self.addCleanup(names.close)
        self.servers = {}

    def start_both(self, *flags):
        """The flags are for a alone."""
        self.begin("a", *flags)
        self.begin("b")
        for server in self.servers.values():
            server.wait_ready()

    def start(self, name, *flags):
        self.begin(name, *flags)
        self.servers[name].wait_ready()

    def begin(self, name, *flags):
        self.servers[name] = replica(name, *flags)
        self.addCleanup(self.servers[name].__exit__)

    def channel(self, *options):
        """A stub of a stock client with the documented config, connected to both servers."""
        channel = harness.stub(TARGET, [("grpc.service_config", documented_config()),
                                        ("grpc.max_receive_message_length", -1),
                                        ("grpc.initial_reconnect_backoff_ms", 100), *options])
        stub = channel.__enter__()
        self.addCleanup(channel.__exit__, None, None, None)
        small = harness.random_request(self.rng, 8, 8, 8)
        before = {name: served(server) for name, server in self.servers.items()}

        def both():
            stub.Matmul(small, timeout=20)
            return all(served(server) > before[name] for name, server in self.servers.items())

        harness.wait_until(both, what="calls that reach both servers")
        return stub

    def test_round_robin_spreads_the_calls(self):
        self.start_both()
        stub = self.channel()
        request = harness.random_request(self.rng, 32, 32, 32)
        before = {name: served(server) for name, server in self.servers.items()}
        for _ in range(200):
            stub.Matmul(request, timeout=20)

        def grown():
            return {name: served(server) - before[name] for name, server in self.servers.items()}

        harness.wait_until(lambda: sum(grown().values()) == 200)
        for name, count in grown().items():
            self.assertGreaterEqual(count, 70, (name, grown()))

    def test_a_drained_server_loses_no_call_and_comes_back(self):
        self.start_both()
        stub = self.channel()
        load = Load(stub, harness.random_request(self.rng, 64, 64, 64))
        self.addCleanup(load.finish)
        leaving = self.servers["a"]
        harness.wait_until(lambda: served(leaving) > 50)
        leaving.signal(signal.SIGTERM)
        self.assertEqual(leaving.wait(30), 0, leaving.log())
        counts = [int(n) for n in re.findall(r"\d+", leaving.log().splitlines()[-1].split(
            "ended:")[1])]
        admitted, completed, failed, refused = counts
        self.assertEqual((completed, failed), (admitted, 0), leaving.log())
        # The client's own health watch turned away before the server refused anything.
        self.assertEqual(refused, 0, leaving.log())
        self.start("a")
        harness.wait_until(lambda: served(self.servers["a"]) > 50, what="calls on the new server")
        codes = load.finish()
        self.assertEqual(set(codes), {"OK"})

    def kill_one_under(self, stub, request):
        """Codes of the calls of a load, under which server a was killed with some of them."""
        load = Load(stub, request, CALLS_AT_ONCE)
        self.addCleanup(load.finish)
        harness.wait_until(lambda: self.servers["a"].metrics()["tcgemm_inflight_requests"] >= 4,
                           what="calls under way on a")
        self.servers["a"].signal(signal.SIGKILL)
        self.servers["a"].wait()
        before = served(self.servers["b"])
        harness.wait_until(lambda: served(self.servers["b"]) > before + 2 * CALLS_AT_ONCE,
                           what="calls on the one that is left")
        return load.finish()

    def test_a_killed_server_costs_retries_and_no_call(self):
        self.start_both(SLOW)
        stub = self.channel()
        codes = self.kill_one_under(stub, harness.random_request(self.rng, *SMALL))
        self.assertEqual(set(codes), {"OK"}, codes)

    def test_without_retries_its_calls_fail(self):
        self.start_both(SLOW)
        stub = self.channel(("grpc.enable_retries", 0))
        codes = self.kill_one_under(stub, harness.random_request(self.rng, *SMALL))
        self.assertEqual(set(codes), {"OK", "UNAVAILABLE"}, codes)

    def test_what_grpc_does_not_keep_it_cannot_retry(self):
        self.start_both(SLOW)
        request = harness.random_request(self.rng, *LARGE)
        stub = self.channel()
        codes = self.kill_one_under(stub, request)
        self.assertEqual(set(codes), {"OK", "UNAVAILABLE"}, codes)
        self.start("a", SLOW)
        stub = self.channel(("grpc.per_rpc_retry_buffer_size", 64 << 20))
        codes = self.kill_one_under(stub, request)
        self.assertEqual(set(codes), {"OK"}, codes)

    def test_our_client_tries_again_whatever_the_size(self):
        self.start_both()
        clients = [subprocess.Popen(
            [harness.CLIENT, "--server", f"{network.NAME}:{network.PORT}", "--timeout", "40s",
             "matmul", "--random", "700x700x700", "--check"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(8)]
        for process in clients:
            self.addCleanup(process.communicate)

        def busy():
            return [server for server in self.servers.values()
                    if server.metrics()["tcgemm_inflight_requests"] >= 2]

        victim = harness.wait_until(busy, what="a server with two of their calls")[0]
        victim.signal(signal.SIGKILL)
        victim.wait()
        for process in clients:
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 0, err)


if __name__ == "__main__":
    if network.missing() == "not run through its main":
        sys.exit(network.run_inside(os.path.abspath(__file__)))
    harness.main()
