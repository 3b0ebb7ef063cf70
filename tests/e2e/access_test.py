"""Who may call, what is whose, how much one caller may use, what a SIGHUP changes, and the access log."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest

import grpc
import numpy as np

import certificates
import harness

pb = harness.pb
ALICE, BOB = "alice-token", "bob-token"


def line(name, token):
    return f"{name}:{hashlib.sha256(token.encode()).hexdigest()}\n"


def bearer(token):
    return [("authorization", f"Bearer {token}")]


class Caller:
    """A stub, and what it sends with each call."""

    def __init__(self, stub, token=None):
        self.stub, self.metadata = stub, bearer(token) if token else None

    def call(self, method, request):
        return getattr(self.stub, method)(request, metadata=self.metadata, timeout=30)

    def keep(self, request, name):
        kept = pb.MatmulRequest()
        kept.CopyFrom(request)
        kept.output.handle = name
        return self.call("Matmul", kept)

    def names(self):
        return [m.handle for m in self.call("ListMatrices", pb.ListMatricesRequest()).matrices]


class AccessTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="tcgemm-access-")
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.ca = certificates.Authority(cls.folder)
        cls.pair = cls.ca.issue("server")
        cls.carol = cls.ca.issue("carol", sans=("DNS:carol",))
        cls.request = harness.random_request(np.random.default_rng(1), 8, 8, 8)

    def setUp(self):
        self.tokens = os.path.join(tempfile.mkdtemp(dir=self.folder), "tokens")
        self.write(self.tokens, "# who\n" + line("alice", ALICE) + line("bob", BOB))
        self.tls = [f"--tls-cert={self.pair[0]}", f"--tls-key={self.pair[1]}",
                    f"--token-file={self.tokens}"]

    @staticmethod
    def write(path, text):
        certificates.replace(path, text.encode())

    @contextlib.contextmanager
    def caller(self, address, token=None, certificate=None):
        if address.startswith("unix:"):
            with harness.stub(address) as stub:
                yield Caller(stub, token)
            return
        key, chain = ((certificates.read(certificate[1]), certificates.read(certificate[0]))
                      if certificate else (None, None))
        credentials = grpc.ssl_channel_credentials(certificates.read(self.ca.path), key, chain)
        with grpc.secure_channel(address, credentials,
                                 options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            yield Caller(harness.pb_grpc.MatmulServiceStub(channel), token)

    def code(self, address, token=None, certificate=None):
        with self.caller(address, token, certificate) as caller:
            return harness.code_of(lambda: caller.call("Matmul", self.request)).name

    def test_right_wrong_absent_and_reloaded_tokens(self):
        with harness.Server(*self.tls, unix=True) as server:
            self.assertEqual(self.code(server.address, ALICE), "OK")
            self.assertEqual(self.code(server.address, "guess"), "UNAUTHENTICATED")
            self.assertEqual(self.code(server.address), "UNAUTHENTICATED")
            self.assertEqual(self.code(server.unix), "OK")  # the kernel says who that is
            self.assertEqual(self.code(server.unix, "guess"), "UNAUTHENTICATED")
            credentials = grpc.ssl_channel_credentials(certificates.read(self.ca.path))
            with grpc.secure_channel(server.address, credentials) as channel:
                health = harness.health_pb2_grpc.HealthStub(channel)
                self.assertEqual(health.Check(harness.health_pb2.HealthCheckRequest()).status,
                                 harness.health_pb2.HealthCheckResponse.SERVING)
            self.assertEqual(
                server.metrics()['tcgemm_rejected_total{reason="credentials"}'], 3)
            # Without a signal.
            self.write(self.tokens, line("alice", "another"))
            harness.wait_until(lambda: self.code(server.address, "another") == "OK",
                               what="the new token")
            self.assertEqual(self.code(server.address, ALICE), "UNAUTHENTICATED")
            self.write(self.tokens, "nonsense\n")
            harness.wait_until(lambda: "line 1 must be ID:SHA256" in server.log(), what="a refusal")
            self.assertEqual(self.code(server.address, "another"), "OK")
            self.assertNotIn("another", server.log())

    def test_the_command_line_sends_its_token(self):
        path = os.path.join(self.folder, "my-token")
        self.write(path, ALICE + "\n")
        trusting = ["--tls-ca", self.ca.path]
        with harness.Server(*self.tls, "--resident-bytes=16MiB") as server:
            for flags, env in (([*trusting, "--token-file", path], None),
                               (trusting, {"TCGEMM_TOKEN": ALICE})):
                for command in (["info"], ["smoke"], ["matmul", "--random", "64x64x64", "--stream"],
                                ["matmul", "--random", "64x64x64", "--lanes", "2"]):
                    done = harness.client(*flags, *command, server=server.address, env=env)
                    self.assertEqual(done.returncode, 0, (command, done.stderr))
            done = harness.client(*trusting, "info", server=server.address,
                                  env={"TCGEMM_TOKEN": "guess"})
            self.assertEqual(done.returncode, 4)
            self.assertIn("--token-file", done.stderr)
            done = harness.client("info", server="gpu1.invalid:1", env={"TCGEMM_TOKEN": ALICE})
            self.assertIn("in plain text", done.stderr)
            self.assertNotIn(ALICE, done.stderr)
        # As docs/OPERATIONS.md makes a line.
        made = subprocess.run("printf %s " + ALICE + " | sha256sum | sed 's/^/alice:/; s/ .*//'",
                              shell=True, capture_output=True, text=True, check=True).stdout
        self.assertEqual(made, line("alice", ALICE))

    def test_tokens_in_plain_text_are_asked_for(self):
        with harness.Server(f"--token-file={self.tokens}", wait=False) as server:
            self.assertEqual(server.wait(), 2)
            self.assertIn("--allow-plaintext-tokens", server.log())
        with harness.Server(f"--token-file={self.tokens}", "--allow-plaintext-tokens") as server:
            with harness.stub(server.address) as stub:
                Caller(stub, BOB).call("Matmul", self.request)
                self.assertEqual(harness.code_of(
                    lambda: Caller(stub).call("Matmul", self.request)).name, "UNAUTHENTICATED")

    def test_what_is_one_callers_nobody_else_finds(self):
        flags = [*self.tls, f"--tls-client-ca={self.ca.path}", "--tls-client-auth=request",
                 "--resident-bytes=16MiB"]
        with harness.Server(*flags, unix=True) as server, contextlib.ExitStack() as stack:
            def enter(*args):
                return stack.enter_context(self.caller(*args))

            callers = {"alice": enter(server.address, ALICE), "bob": enter(server.address, BOB),
                       "carol": enter(server.address, None, self.carol),
                       "unix": enter(server.unix)}
            for name, caller in callers.items():
                caller.keep(self.request, "mine")
                caller.keep(self.request, f"of-{name}")
            for name, caller in callers.items():
                self.assertEqual(sorted(caller.names()), ["mine", f"of-{name}"])
                for other in callers:
                    request = pb.DeleteMatrixRequest(handle=f"of-{other}")
                    use = pb.MatmulRequest(a=pb.Operand(handle=f"of-{other}", rows=8, cols=8,
                                                        dtype=pb.BF16), b=self.request.b)
                    wanted = "OK" if other == name else "NOT_FOUND"
                    self.assertEqual(harness.code_of(lambda r=use, c=caller: c.call(
                        "Matmul", r)).name, wanted, (name, other))
                    if other != name:
                        self.assertEqual(harness.code_of(lambda r=request, c=caller: c.call(
                            "DeleteMatrix", r)).name, "NOT_FOUND", (name, other))
            # A certificate says more than a token: it is carol's, whatever else comes along.
            both = enter(server.address, ALICE, self.carol)
            self.assertEqual(sorted(both.names()), ["mine", "of-carol"])
            # The same token is the same caller on a unix socket.
            self.assertEqual(sorted(enter(server.unix, ALICE).names()), ["mine", "of-alice"])

    def test_a_region_is_its_callers_alone(self):
        with harness.Server(*self.tls, "--allow-shared-memory", unix=True) as server, \
                contextlib.ExitStack() as stack:
            callers = [stack.enter_context(self.caller(server.unix, token))
                       for token in (ALICE, BOB, None)]
            done = threading.Event()
            stack.callback(done.set)

            def hold(caller):
                def requests():
                    yield pb.HoldRegionRequest(bytes=1 << 16)
                    done.wait(60)
                held.append(caller.stub.HoldRegion(requests(), metadata=caller.metadata))
                return next(held[-1]).region

            held = []  # a call that nobody knows any more is cancelled
            regions = [hold(caller) for caller in callers]
            for caller in callers:
                for owner, name in zip(callers, regions):
                    operand = pb.Operand(rows=8, cols=8, dtype=pb.BF16,
                                         region=pb.RegionRef(region=name))
                    code = harness.code_of(lambda c=caller, o=operand: c.call(
                        "Matmul", pb.MatmulRequest(a=o, b=o)))
                    self.assertEqual(code.name, "OK" if owner is caller else "NOT_FOUND")
            # Regions are no calls in flight, and not open to whoever has no credentials.
            guess = stack.enter_context(self.caller(server.unix, "guess"))
            self.assertEqual(harness.code_of(lambda: hold(guess)).name, "UNAUTHENTICATED")

    def test_limits_are_each_callers_own(self):
        large = harness.random_request(np.random.default_rng(2), 256, 256, 256)
        with harness.Server(*self.tls, "--max-inflight-per-caller=1",
                            "--queue-bytes-per-caller=64KiB") as server, \
                self.caller(server.address, ALICE) as alice, \
                self.caller(server.address, BOB) as bob:
            done = threading.Event()
            self.addCleanup(done.set)
            held = alice.stub.MatmulStream(iter(lambda: done.wait(60), True),
                                           metadata=alice.metadata)
            # Before it the other call would take the place, and the stream be refused.
            harness.wait_until(lambda: server.metrics()["tcgemm_inflight_requests"] == 1,
                               what="the stream")
            with self.assertRaises(grpc.RpcError) as caught:
                alice.call("Matmul", self.request)
            error = caught.exception
            self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
            self.assertIn("--max-inflight-per-caller", error.details())
            self.assertIn("grpc-retry-pushback-ms", dict(error.trailing_metadata()))
            bob.call("Matmul", self.request)
            held.cancel()

            def too_large():
                with self.assertRaises(grpc.RpcError) as caught:
                    bob.call("Matmul", large)
                return "--queue-bytes-per-caller" in caught.exception.details()

            self.assertTrue(too_large())
            self.assertGreater(server.metrics()['tcgemm_rejected_total{reason="caller"}'], 1)

    def test_who_waits_for_each_answer_is_never_refused(self):
        calls, threads = 200, 2

        def loop(address, refused):
            with self.caller(address, ALICE) as alice:
                for _ in range(calls):
                    try:
                        alice.call("Matmul", self.request)
                    except grpc.RpcError as error:
                        refused.append(error.details())

        with harness.Server(*self.tls, f"--max-inflight-per-caller={threads}",
                            unix=True) as server:
            for address in server.addresses:
                refused = []
                loops = [threading.Thread(target=loop, args=(address, refused))
                         for _ in range(threads)]
                for thread in loops:
                    thread.start()
                for thread in loops:
                    thread.join()
                self.assertEqual(refused, [], address)

    def test_sighup_changes_what_may_change(self):
        config = os.path.join(os.path.dirname(self.tokens), "tcgemm.toml")
        settings = 'max-inflight-per-caller = 5\nmax-batch = 16\nlog-level = "info"\n'
        self.write(config, settings)

        def hang_up(server):
            before = server.log().count("SIGHUP")
            server.signal(signal.SIGHUP)
            harness.wait_until(lambda: server.log().count("SIGHUP") > before, what="an answer")
            return re.findall("SIGHUP: .*", server.log())[-1]

        with harness.Server(*self.tls, f"--config={config}") as server:
            self.assertEqual(hang_up(server), "SIGHUP: changed nothing")
            self.write(config, 'max-inflight-per-caller = 6\nmax-batch = 8\n'
                               'max-queue-delay-us = 7\nlog-level = "debug"\nmax-inflight = 9\n')
            self.assertEqual(
                hang_up(server),
                'SIGHUP: changed --log-level from "info" to "debug", --max-batch from 16 to 8, '
                '--max-inflight-per-caller from 5 to 6, --max-queue-delay-us from 0 to 7; '
                'needs a restart: --max-inflight')
            with self.caller(server.address, ALICE) as alice:
                info = alice.call("GetServerInfo", pb.GetServerInfoRequest())
                self.assertEqual((info.max_batch, info.max_queue_delay_us), (8, 7))
            for bad, words in (("", "--config sets nothing"),
                               ("# max-batch = 4\n", "--config sets nothing"),
                               ("[default]\nmax-batch = 4\n", "line 1: there are no sections"),
                               ("max-batch = 4\nmax-batch = 5\n", "'max-batch' is set twice")):
                self.write(config, bad)
                self.assertIn(f"nothing is changed: {words}",
                              hang_up(server).replace("tcgemm-server: error: --config: ", ""))
            os.unlink(config)
            os.mkfifo(config)
            self.assertIn("is not a regular file", hang_up(server))
            os.unlink(config)
            self.write(config, "max-batch = 0\n")
            self.assertIn("nothing is changed: tcgemm-server: error: --max-batch", hang_up(server))
            self.assertEqual(self.code(server.address, ALICE), "OK")
            self.assertEqual(server.stop(), 0)

    def test_the_access_log(self):
        path = os.path.join(os.path.dirname(self.tokens), "calls.log")
        with harness.Server(*self.tls, f"--access-log={path}") as server:
            with self.caller(server.address, ALICE) as alice:
                alice.metadata += [("traceparent",
                                    "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
                alice.call("Matmul", self.request)
            self.code(server.address, "guess")
            harness.wait_until(lambda: len(certificates.read(path).splitlines()) == 2, what="lines")
            os.rename(path, path + ".1")
            server.signal(signal.SIGHUP)
            harness.wait_until(lambda: os.path.exists(path), what="a new file")
            self.code(server.address, BOB)
            self.assertEqual(server.stop(), 0)
        good, bad = (json.loads(text) for text in certificates.read(path + ".1").splitlines())
        self.assertEqual((good["method"], good["code"], good["caller"], good["peer"]),
                         ("Matmul", "OK", "token:alice", "tls"))
        self.assertEqual((good["m"], good["n"], good["k"]), (8, 8, 8))
        self.assertEqual(good["trace_id"], "0af7651916cd43dd8448eb211c80319c")
        self.assertGreater(good["bytes_in"], 256)
        self.assertEqual(set(good["stages_ms"]), {"receive", "decode", "queue", "copy_in", "kernel",
                                                  "verify", "copy_out", "send"})
        self.assertEqual((bad["code"], bad["caller"]), ("UNAUTHENTICATED", "anonymous"))
        last, = (json.loads(text) for text in certificates.read(path).splitlines())
        self.assertEqual(last["caller"], "token:bob")
        both = certificates.read(path) + certificates.read(path + ".1")
        for secret in (ALICE, BOB, "guess", "Bearer"):
            self.assertNotIn(secret.encode(), both)

    def test_old_connections_end_without_a_failed_call(self):
        with harness.Server("--max-connection-age=200ms", "--max-concurrent-streams=4") as server:
            codes, ready = [], []
            enough = threading.Event()

            def note(state):
                if state == grpc.ChannelConnectivity.READY:
                    ready.append(state)
                if len(ready) > 2:
                    enough.set()

            def load(stub):
                while not enough.is_set() and len(codes) < 100_000:
                    codes.append(harness.code_of(lambda: stub.Matmul(self.request, timeout=30)))

            with grpc.insecure_channel(server.address) as channel:
                channel.subscribe(note)
                stub = harness.pb_grpc.MatmulServiceStub(channel)
                harness.in_threads(8, lambda _: load(stub))
            self.assertTrue(enough.is_set(), "the connection stayed")
            self.assertEqual(set(codes), {grpc.StatusCode.OK})
            self.assertGreater(len(codes), 100)


if __name__ == "__main__":
    harness.main()
