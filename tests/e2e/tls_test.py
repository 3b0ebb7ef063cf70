"""TLS and mTLS as clients meet them, and certificates that change under load."""

import contextlib
import os
import ssl
import shutil
import tempfile
import threading
import unittest

import grpc
import numpy as np

import certificates
import harness

REFUSED = 'tcgemm_certificate_reloads_total{result="refused"}'
SERVED = 'tcgemm_certificate_reloads_total{result="served"}'
EXPIRY = "tcgemm_certificate_expiry_timestamp_seconds"


def served_certificate(address):
    """PEM of what the server shows to a new connection."""
    host, port = address.rsplit(":", 1)
    return ssl.get_server_certificate((host, int(port)))


@contextlib.contextmanager
def secure_stub(address, ca, own=None):
    root = certificates.read(ca.path)
    key, chain = (certificates.read(own[1]), certificates.read(own[0])) if own else (None, None)
    credentials = grpc.ssl_channel_credentials(root, key, chain)
    with grpc.secure_channel(address, credentials,
                             options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield harness.pb_grpc.MatmulServiceStub(channel)


class TlsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="tcgemm-tls-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.ca = certificates.Authority(cls.folder)
        cls.other = certificates.Authority(cls.folder, "other")
        cls.first = cls.ca.issue("server")
        cls.request = harness.random_request(np.random.default_rng(1), 8, 8, 8)

    def setUp(self):
        # Each test's server has files of its own to replace.
        self.cert, self.key = (os.path.join(tempfile.mkdtemp(dir=self.folder), name)
                               for name in ("tls.pem", "tls.key"))
        self.install(self.first)

    def install(self, pair):
        certificates.replace(self.cert, certificates.read(pair[0]))
        certificates.replace(self.key, certificates.read(pair[1]))

    def server(self, *flags, **kwargs):
        return harness.Server(f"--tls-cert={self.cert}", f"--tls-key={self.key}", *flags, **kwargs)

    def code(self, address, ca, own=None):
        with secure_stub(address, ca, own) as stub:
            return harness.code_of(lambda: stub.Matmul(self.request, timeout=30))

    def test_who_trusts_the_authority_is_served_and_nobody_else(self):
        with self.server(unix=True) as server:
            with secure_stub(server.address, self.ca) as stub:
                harness.close_enough(self, self.request, stub.Matmul(self.request, timeout=30))
            self.assertEqual(self.code(server.address, self.other), grpc.StatusCode.UNAVAILABLE)
            with harness.stub(server.address) as plain:
                self.assertEqual(harness.code_of(lambda: plain.Matmul(self.request, timeout=30)),
                                 grpc.StatusCode.UNAVAILABLE)
            with harness.stub(server.unix) as plain:  # no TLS there
                plain.Matmul(self.request, timeout=30)
            self.assertEqual(server.stop(), 0)

    def test_the_command_line_says_what_to_do(self):
        alice = self.ca.issue("alice", sans=())
        plain = harness.Server()
        with plain, self.server(f"--tls-client-ca={self.ca.path}",
                                "--resident-bytes=16MiB") as server:
            own = ["--tls-cert", alice[0], "--tls-key", alice[1]]
            trusting = ["--tls-ca", self.ca.path]
            done = harness.client(*trusting, *own, "smoke", server=server.address)
            self.assertEqual(done.returncode, 0, done.stderr)
            env = {"TCGEMM_TLS_CA": self.ca.path, "TCGEMM_CLIENT_TLS_CERT": alice[0],
                   "TCGEMM_CLIENT_TLS_KEY": alice[1]}
            done = harness.client("matmul", "--random", "300x300x300", "--lanes", "3", "--check",
                                  server=server.address, env=env)
            self.assertEqual(done.returncode, 0, done.stderr)
            for flags, where, words in (
                    (["--tls-ca", self.other.path, *own], server, "not of an authority in --tls-ca"),
                    ([*trusting, *own, "--tls-server-name", "elsewhere"], server,
                     "--tls-server-name"),
                    (trusting, server, "--tls-cert and --tls-key"),
                    ([], server, "--tls-ca"),
                    (trusting, plain, "leave --tls-ca out"),
                    (["--tls-cert", alice[0]], plain, "go together"),
                    (["--tls-ca", "/nonexistent"], plain, "--tls-ca /nonexistent: No such file")):
                done = harness.client(*flags, "--timeout", "5s", "info", server=where.address)
                self.assertIn(done.returncode, (2, 3), (flags, done.stderr))
                self.assertIn(words, done.stderr, flags)

    def test_clients_show_their_certificate(self):
        alice = self.ca.issue("alice")
        mallory = self.other.issue("mallory")
        late = self.ca.issue("late", expired=True)
        with self.server(f"--tls-client-ca={self.ca.path}") as server:
            self.assertEqual(self.code(server.address, self.ca, alice), grpc.StatusCode.OK)
            for own in (None, mallory, late):
                self.assertEqual(self.code(server.address, self.ca, own),
                                 grpc.StatusCode.UNAVAILABLE, own)
        with self.server(f"--tls-client-ca={self.ca.path}",
                         "--tls-client-auth=request") as server:
            for own in (None, alice):
                self.assertEqual(self.code(server.address, self.ca, own), grpc.StatusCode.OK, own)
            self.assertEqual(self.code(server.address, self.ca, mallory),
                             grpc.StatusCode.UNAVAILABLE)

    def test_a_bad_pair_keeps_the_old_one_serving(self):
        with self.server() as server:
            old = served_certificate(server.address)
            self.assertGreater(server.metrics()[EXPIRY], 0)
            mismatched = (self.ca.issue("one")[0], self.ca.issue("two")[1])
            nonsense = (self.ca.issue("three")[0], self.ca.path)
            bad = (mismatched, self.ca.issue("old", expired=True), nonsense)
            for number, pair in enumerate(bad, 1):
                self.install(pair)
                harness.wait_until(lambda n=number: server.metrics()[REFUSED] == n,
                                   what=f"refusal {number}")
                self.assertEqual(served_certificate(server.address), old)
                self.assertEqual(self.code(server.address, self.ca), grpc.StatusCode.OK)
            for words in ("is not the key of the certificate", "has expired", "holds no PEM"):
                self.assertEqual(server.log().count(words), 1, server.log())
            self.assertEqual(server.metrics()[SERVED], 0)
            self.install(self.ca.issue("good"))
            harness.wait_until(lambda: server.metrics()[SERVED] == 1, what="a good pair")

    def test_a_renewal_under_load_fails_no_call(self):
        with self.server() as server:
            ended = threading.Event()
            codes, connections = [], []

            def load(new_connections):
                while not ended.is_set():
                    with secure_stub(server.address, self.ca) as stub:
                        connections.append(1)
                        for _ in range(1 if new_connections else 50):
                            codes.append(harness.code_of(
                                lambda: stub.Matmul(self.request, timeout=30)))

            threads = [threading.Thread(target=load, args=(new,)) for new in (True, False)]
            for thread in threads:
                thread.start()
            for name in ("second", "third"):
                pair = self.ca.issue(name)
                self.install(pair)
                wanted = certificates.read(pair[0]).decode().strip()
                harness.wait_until(lambda w=wanted: served_certificate(server.address).strip() == w,
                                   what=f"the {name} certificate")
            ended.set()
            for thread in threads:
                thread.join()
            self.assertGreater(len(connections), 10)
            self.assertEqual(set(codes), {grpc.StatusCode.OK})
            self.assertEqual(server.metrics()[REFUSED], 0, server.log())

    def test_bad_files_end_the_start(self):
        expired = self.ca.issue("older", expired=True)
        for cert, key, words in ((self.cert, "/nonexistent", "--tls-key /nonexistent: No such file"),
                                 (*expired, "has expired on"),
                                 (self.cert, expired[1], "is not the key of")):
            with harness.Server(f"--tls-cert={cert}", f"--tls-key={key}", wait=False) as server:
                self.assertEqual(server.wait(), 2)
                self.assertIn(words, server.log())

    def test_beyond_loopback_only_with_tls_or_the_flag(self):
        anywhere = "--listen=0.0.0.0:0"
        with harness.Server(anywhere, wait=False) as server:
            self.assertEqual(server.wait(), 2)
            self.assertIn("--insecure-listen-any", server.log())
        with harness.Server(anywhere, "--insecure-listen-any") as server:
            self.assertIn("INSECURE: 0.0.0.0:0", server.log())
        with self.server(anywhere) as server:
            self.assertNotIn("INSECURE", server.log())
            port = server.address.rsplit(":", 1)[1]
            self.assertEqual(self.code(f"localhost:{port}", self.ca), grpc.StatusCode.OK)


if __name__ == "__main__":
    harness.main()
