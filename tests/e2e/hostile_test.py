"""Bad input, a test each. Afterwards the server still serves, memory is back where it was, and every
started call is counted in exactly one code."""

import gzip
import threading
import time
import unittest

import grpc
import numpy as np

import harness
import raw_client
from harness import pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNIMPLEMENTED = grpc.StatusCode.UNIMPLEMENTED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while True:
        out.append((value & 0x7F) | (0x80 if value > 0x7F else 0))
        value >>= 7
        if not value:
            return bytes(out)


def field(number, wire_type, payload):
    return varint(number << 3 | wire_type) + payload


def submessage(number, payload):
    return field(number, 2, varint(len(payload)) + payload)


class HostileTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server("--max-message-bytes=16MiB", "--send-timeout=1s", unix=True)
        cls.rng = np.random.default_rng(23)
        cls.a = harness.normal_bf16(cls.rng, 4, 6)
        cls.b = harness.normal_bf16(cls.rng, 6, 5)
        cls.good = harness.request(cls.a, cls.b)
        with harness.stub(cls.server.address) as stub:
            cls.expected = stub.Matmul(cls.good, timeout=30).d
        cls.started = 1

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def tearDown(self):
        with harness.stub(self.server.address) as stub:
            self.assertEqual(stub.Matmul(self.good, timeout=30).d, self.expected)

    def raw(self, data, metadata=None, **kwargs):
        """(code, details, response bytes) of arbitrary request bytes."""
        with grpc.insecure_channel(self.server.address,
                                   options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary(raw_client.METHOD)
            try:
                return grpc.StatusCode.OK, "", call(data, timeout=30, metadata=metadata, **kwargs)
            except grpc.RpcError as error:
                return error.code(), error.details(), None

    def refused(self, change, code, *needles):
        request = pb.MatmulRequest()
        request.CopyFrom(self.good)
        change(request)
        got, details, _ = self.raw(request.SerializeToString())
        self.assertEqual(got, code, details)
        for needle in needles:
            self.assertIn(needle, details)

    def test_shapes_that_do_not_fit(self):
        def other_k(r):
            r.b.rows, r.b.cols = 5, 6
        self.refused(other_k, INVALID, "4x6", "5x6")

        def transposed(r):
            r.b.transposed = True
        self.refused(transposed, INVALID, "5x6")

    def test_byte_counts(self):
        for count, needle in ((47, "47"), (0, "0"), (49, "49"), (96, "fp32"), (192, "fp64")):
            def change(r, count=count):
                r.a.inline = b"\0" * count
            self.refused(change, INVALID, "48", needle, "a.inline")

        def no_source(r):
            r.a.ClearField("inline")
        self.refused(no_source, INVALID, "a")

    def test_dimensions(self):
        for value in (0, -1, -2**31, -2**63, 2**31, 2**32, 2**32 + 4, 2**62, 2**63 - 1):
            for name in ("rows", "cols"):
                def change(r, name=name, value=value):
                    setattr(r.a, name, value)
                self.refused(change, INVALID, f"a.{name}", str(value))
        for rows, cols in ((2**16, 2**16), (2**31 - 1, 2**31 - 1), (2**31 - 1, 2)):
            def change(r, rows=rows, cols=cols):
                r.a.rows, r.a.cols, r.b.rows = rows, cols, cols
            self.refused(change, INVALID)
        for ld in (-1, 1, 5, 2**31, 2**62, 2**63 - 1, -2**63):
            def change(r, ld=ld):
                r.a.ld = ld
            self.refused(change, INVALID, "a.", str(ld) if ld in (-1, 1, 5) else "")

    def test_product_too_large_for_the_server(self):
        # K = 1: 2 · 4 MiB in, and a result of 8 TiB.
        tall = np.zeros((2**21, 1), np.uint16)
        code, details, _ = self.raw(harness.request(tall, tall.T).SerializeToString())
        self.assertEqual(code, EXHAUSTED, details)
        self.assertIn("pinned-bytes", details)

    def test_enums(self):
        for number in (5, 17, -1, 2**31 - 1):
            def output(r, number=number):
                r.output_dtype = number
            self.refused(output, INVALID, "output_dtype", str(number))

            def operand(r, number=number):
                r.b.dtype = number
            self.refused(operand, INVALID, "b.dtype", str(number))

        def unspecified(r):
            r.a.dtype = pb.DTYPE_UNSPECIFIED
        self.refused(unspecified, INVALID, "a.dtype")

    def test_declared_but_not_built(self):
        changes = {
            "fp32 operand": lambda r: setattr(r.a, "dtype", pb.FP32),
            "int8 operand": lambda r: setattr(r.a, "dtype", pb.INT8),
            "int32 result": lambda r: setattr(r, "output_dtype", pb.INT32),
            "region": lambda r: r.a.region.CopyFrom(pb.RegionRef(region="x")),
            "int8 C": lambda r: (r.c.CopyFrom(self.c()), setattr(r.c, "dtype", pb.INT8)),
            "region of C": lambda r: r.c.CopyFrom(self.c(region=pb.RegionRef(region="x"))),
            "region of bias": lambda r: r.bias.CopyFrom(self.c(region=pb.RegionRef(region="x"))),
            "verify": lambda r: setattr(r, "verify", pb.VERIFY_FREIVALDS),
            "output": lambda r: r.output.region.CopyFrom(pb.RegionRef(region="x")),
        }
        for name, change in changes.items():
            with self.subTest(name):
                self.refused(change, UNIMPLEMENTED)

    def test_the_fastest_reduction_is_the_default_one_on_a_cpu(self):
        request = harness.request(self.a, self.b)
        request.reduction = pb.FASTEST
        with harness.stub(self.server.address) as stub:
            self.assertEqual(stub.Matmul(request, timeout=30).d, self.expected)
        self.refused(lambda r: setattr(r, "reduction", 17), INVALID, "reduction is 17")

    def c(self, **source):
        """An operand of D's shape."""
        return pb.Operand(rows=4, cols=5, dtype=pb.FP32, **(source or {"inline": bytes(80)}))

    def test_epilogues_that_are_none(self):
        def c(r, **changes):
            r.c.CopyFrom(self.c())
            for name, value in changes.items():
                setattr(r.c, name, value)

        def bias(r, rows, cols):
            r.bias.CopyFrom(pb.Operand(rows=rows, cols=cols, dtype=pb.FP32,
                                       inline=bytes(4 * rows * cols)))

        cases = {
            "nan": (lambda r: setattr(r, "alpha", float("nan")), "alpha is nan"),
            "inf": (lambda r: setattr(r, "beta", float("inf")), "beta is inf"),
            "no c": (lambda r: setattr(r, "beta", 1.0), "beta is 1, but c is missing: set c, 4x5"),
            "shape": (lambda r: c(r, rows=5, cols=4), "c is 5x4, D is 4x5"),
            "transposed": (lambda r: c(r, transposed=True), "c.transposed"),
            "bytes": (lambda r: c(r, inline=bytes(40)), "c.inline has 40 bytes, expected 80"),
            "untyped": (lambda r: c(r, dtype=0), "c.dtype is 0"),
            "bias": (lambda r: bias(r, 4, 5), "bias is 4x5, D is 4x5; bias must be a row, 1x5"),
            "short bias": (lambda r: bias(r, 1, 4), "or a column, 4x1"),
            "activation": (lambda r: setattr(r, "activation", 17), "activation is 17"),
        }
        for name, (change, words) in cases.items():
            with self.subTest(name):
                self.refused(change, INVALID, words)

    def test_garbage_and_truncations(self):
        good = self.good.SerializeToString()
        self.assertEqual(self.raw(b"")[0], INVALID)
        for byte in (0x00, 0x01, 0x0A, 0x0B, 0x0F, 0x80, 0xFF):
            self.assertEqual(self.raw(bytes([byte]))[0], INVALID, hex(byte))
        for length in range(1, len(good)):
            code, _, d = self.raw(good[:length]) if length % 7 == 0 else (INVALID, "", None)
            self.assertEqual(code, INVALID, length)
        noise = np.random.default_rng(1)
        for size in (2, 3, 10, 100, 5000):
            for _ in range(10):
                code, _, _ = self.raw(noise.bytes(size))
                self.assertIn(code, (INVALID, UNIMPLEMENTED))
        for bad in (b"\x0a" + b"\xff" * 10 + b"\x01", b"\x18" + b"\x80" * 11,
                    b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"):
            self.assertEqual(self.raw(bad)[0], INVALID)

    def test_flipped_bytes_never_crash(self):
        good = bytearray(self.good.SerializeToString())
        for position in range(0, len(good), 3):
            flipped = bytearray(good)
            flipped[position] ^= 0xFF
            self.assertIn(self.raw(bytes(flipped))[0],
                          (grpc.StatusCode.OK, INVALID, UNIMPLEMENTED, EXHAUSTED,
                           grpc.StatusCode.NOT_FOUND))

    def test_duplicated_reordered_and_unknown_fields(self):
        # Inside an operand: inline first, dimensions twice, the last one wins.
        def shuffled(x, transposed):
            return (submessage(15, b"junk") + field(2, 0, varint(99)) + submessage(15, x.tobytes())
                    + field(1, 0, varint(x.shape[0])) + field(4, 0, varint(1))
                    + field(100, 0, varint(5)) + field(101, 1, b"12345678")
                    + submessage(102, b"abc") + field(103, 5, b"1234")
                    + field(104, 3, b"") + field(1, 0, varint(7)) + field(104, 4, b"")
                    + field(2, 0, varint(x.shape[1])))
        data = (field(3, 0, varint(2)) + submessage(2, shuffled(self.b, False))
                + submessage(1, shuffled(self.a, False)) + field(3, 0, varint(1))
                + submessage(999, b"future"))
        code, details, response = self.raw(data)
        self.assertEqual(code, grpc.StatusCode.OK, details)
        self.assertEqual(pb.MatmulResponse.FromString(response).d, self.expected)
        # The same message twice over merges into itself.
        good = self.good.SerializeToString()
        code, _, response = self.raw(good + good)
        self.assertEqual(code, grpc.StatusCode.OK)
        self.assertEqual(pb.MatmulResponse.FromString(response).d, self.expected)

    def test_frames_cut_anywhere(self):
        good = raw_client.frame(self.good.SerializeToString())
        for chunk in (1, 2, 3, 7):
            with raw_client.RawCall(self.server.address) as call:
                call.send(good, end=True, chunk=chunk)
                status, message, _ = call.finish()
                self.assertEqual(status, 0, message)
                self.assertEqual(pb.MatmulResponse.FromString(call.body[5:]).d, self.expected)

    def test_no_message_and_two_messages(self):
        with raw_client.RawCall(self.server.address) as call:
            call.send(b"", end=True)
            status, message, _ = call.finish()
            self.assertIn(status, (3, 13), message)
        good = raw_client.frame(self.good.SerializeToString())
        with raw_client.RawCall(self.server.address) as call:
            call.send(good + good, end=True)
            call.finish()  # either answer will do; the server lives (tearDown)

    def test_message_above_the_limit(self):
        code, details, _ = self.raw(b"\0" * (17 << 20))
        self.assertEqual(code, EXHAUSTED, details)

    def test_compressed_messages_and_a_gzip_bomb(self):
        code, _, _ = self.raw(self.good.SerializeToString(), compression=grpc.Compression.Gzip)
        self.assertEqual(code, UNIMPLEMENTED)
        before = self.server.rss()
        bomb = gzip.compress(b"\0" * (1 << 30), 1)
        with raw_client.RawCall(self.server.address,
                                headers=[("grpc-encoding", "gzip")]) as call:
            call.send(raw_client.frame(bomb, compressed=1), end=True)
            status, _, _ = call.finish()
            self.assertEqual(status, 12)
        self.assertLess(self.server.peak_rss() - before, 128 << 20)

    def test_deadline_without_a_local_timer(self):
        # The payload never ends: the server alone can end this call.
        for address in (self.server.address, self.server.unix):
            with raw_client.RawCall(address, headers=[("grpc-timeout", "50m")]) as call:
                call.send(raw_client.frame(b"x" * 100)[:50])
                status, message, took = call.finish()
                self.assertEqual(status, raw_client.GRPC_DEADLINE_EXCEEDED, message)
                self.assertLess(abs(took - 0.05), 0.015)

    def test_deadline_of_a_nanosecond(self):
        # gRPC rounds it up to a millisecond, in which a whole request might be answered: send half.
        half = raw_client.frame(self.good.SerializeToString())[:50]
        with raw_client.RawCall(self.server.address, headers=[("grpc-timeout", "1n")]) as call:
            call.send(half)
            self.assertEqual(call.finish()[0], raw_client.GRPC_DEADLINE_EXCEEDED)

    def test_clients_gone_mid_send_and_mid_receive(self):
        big = raw_client.frame(harness.random_request(self.rng, 2048, 1024, 1024)
                               .SerializeToString())
        for address in (self.server.address, self.server.unix):
            for cut in (0, 4, 5, 1000, len(big) // 2):
                call = raw_client.RawCall(address)
                call.send(big[:cut])
                call.close()
            for wanted in (1, 100_000):
                call = raw_client.RawCall(address)
                call.send(big, end=True)
                while len(call.body) < wanted and not call.ended:
                    call.pump()
                call.close()
        self.settled()

    def test_readers_that_never_read(self):
        big = raw_client.frame(harness.random_request(self.rng, 1024, 1024, 256)
                               .SerializeToString())
        calls = [raw_client.RawCall(address, window=0)
                 for address in (self.server.address, self.server.unix) for _ in range(4)]
        for call in calls:
            call.send(big, end=True)
        # Their slabs come back after --send-timeout although the sockets stay open.
        self.settled()
        for call in calls:
            call.close()

    def settled(self):
        """All memory is back and every call has ended."""
        def idle():
            samples = self.server.metrics()
            return (samples["tcgemm_inflight_requests"] == 0
                    and samples['tcgemm_pool_bytes{pool="pinned",state="used"}'] == 0)
        harness.wait_until(idle, timeout=20, what="an idle server")

    def test_metadata_flood(self):
        self.raw(self.good.SerializeToString(), metadata=[("x-junk", "y" * 60000)])

    def test_not_http2_at_all(self):
        import socket
        host, port = self.server.address.rsplit(":", 1)
        for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 1000, b"\xff" * 100000):
            with socket.create_connection((host, int(port))) as sock:
                sock.settimeout(10)
                try:
                    sock.sendall(junk)
                    sock.recv(100)
                except OSError:
                    pass

    def test_slow_senders_do_not_lock_others_out(self):
        stalled = [raw_client.RawCall(self.server.address) for _ in range(200)]
        for call in stalled:
            call.send(raw_client.frame(b"x" * 1000)[:20])
        start = time.monotonic()
        with harness.stub(self.server.unix) as stub:
            self.assertEqual(stub.Matmul(self.good, timeout=10).d, self.expected)
        self.assertLess(time.monotonic() - start, 3)
        for call in stalled:
            call.close()
        self.settled()

    def test_zz_every_call_was_counted_once(self):
        """Runs last: started = the sum over codes."""
        self.settled()
        samples = self.server.metrics()
        codes = harness.counted(samples)
        ended = samples['tcgemm_request_duration_seconds_count{method="Matmul"}']
        self.assertEqual(sum(codes.values()), ended)
        self.assertGreater(codes["OK"], 20)
        self.assertGreater(codes["INVALID_ARGUMENT"], 20)
        self.assertGreater(codes["CANCELLED"], 5)
        self.assertNotIn("UNKNOWN", codes)
        self.assertNotIn("INTERNAL", codes)


if __name__ == "__main__":
    harness.main()
