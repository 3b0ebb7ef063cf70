"""Clients that take every file descriptor: others are served again once they let go."""

import contextlib
import os
import resource
import socket
import time
import unittest

import numpy as np

import harness

LIMIT = 256
PROCESS_OF_FEW_FILES = ["prlimit", f"--nofile={LIMIT}:{LIMIT}"]


def connect(address):
    """A connection to a server's address, without a word said."""
    if address.startswith("unix:"):
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(5)
        client.connect(address.removeprefix("unix:"))
    else:
        host, port = address.rsplit(":", 1)
        client = socket.create_connection((host, int(port)), timeout=5)
    return client


def is_closed(client):
    """Whether the server ends a connection that says nothing, rather than greeting it."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def refusals(server, address):
    """The lines of the log about an address's refused connections."""
    return [line for line in server.log().splitlines()
            if f" {address}: " in line and "connections refused" in line]


class ConnectionsTest(unittest.TestCase):
    def setUp(self):
        self.request = harness.random_request(np.random.default_rng(3), 8, 8, 8)

    def matmul(self, address, timeout=20):
        with harness.stub(address) as stub:
            return stub.Matmul(self.request, timeout=timeout, wait_for_ready=True)

    def test_connections_without_end_leave_descriptors_for_the_rest(self):
        with harness.Server(unix=True, prefix=PROCESS_OF_FEW_FILES) as server:
            for address in server.addresses:
                refused = server.metrics()["tcgemm_connections_refused_total"]
                with self.subTest(address=address), contextlib.ExitStack() as held, \
                        harness.stub(address) as early:
                    early.Matmul(self.request, timeout=20)
                    clients = [held.enter_context(connect(address)) for _ in range(LIMIT + 50)]
                    self.assertTrue(is_closed(clients[-1]), "at once, not after a timeout")
                    early.Matmul(self.request, timeout=20)  # who is connected is served
                    self.assertEqual(server.get("/healthz")[0], 200)
                    metrics = server.metrics()
                    self.assertEqual(metrics["process_max_fds"], LIMIT)
                    self.assertLess(metrics["process_open_fds"], LIMIT)
                    self.assertGreaterEqual(
                        metrics["tcgemm_connections_refused_total"] - refused, 50)
                self.matmul(address)

    def test_one_listener_does_not_lock_out_the_others(self):
        with harness.Server(unix=True, prefix=PROCESS_OF_FEW_FILES) as server:
            for flooded, other in (server.addresses, reversed(server.addresses)):
                with self.subTest(flooded=flooded), contextlib.ExitStack() as held:
                    clients = [held.enter_context(connect(flooded)) for _ in range(LIMIT + 50)]
                    self.assertTrue(is_closed(clients[-1]))
                    self.matmul(other)
                    harness.wait_until(lambda address=flooded: refusals(server, address),
                                       what="a line in the log")
                self.matmul(flooded)
            for address in server.addresses:
                lines = refusals(server, address)
                # At most one in 10 s, of at least 50 refusals.
                self.assertLess(len(lines), 10, lines)
                self.assertIn(f"the limit of open files is {LIMIT}", lines[0])

    def test_an_accept_that_finds_no_descriptor_is_not_the_last(self):
        with harness.Server(unix=True) as server:
            pid = server.process.pid
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            self.matmul(server.address)
            for address in server.addresses:
                with self.subTest(address=address):
                    # What is open stays open; accept says EMFILE.
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
                    waiting = [connect(address) for _ in range(5)]
                    self.assertIsNone(server.process.poll())
                    cpu = self.cpu_seconds(pid)
                    time.sleep(0.5)
                    self.assertLess(self.cpu_seconds(pid) - cpu, 0.25, "it rests between tries")
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
                    self.matmul(address)
                    for client in waiting:
                        client.close()

    def test_connections_to_the_metrics_port_that_say_nothing(self):
        with harness.Server() as server, contextlib.ExitStack() as held:
            for _ in range(200):
                held.enter_context(connect(server.metrics_address))
            self.assertEqual(server.get("/healthz")[0], 200)  # within the 10 s of a probe

    @staticmethod
    def cpu_seconds(pid):
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    unittest.main()
