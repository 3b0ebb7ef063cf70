"""A stock Python client, stubs straight from the proto, no options."""

import os
import tempfile
import unittest

import grpc
import numpy as np

import harness
import reflection_pb2
import reflection_pb2_grpc
from harness import pb


class StockClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server(unix=True)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def setUp(self):
        self.rng = np.random.default_rng(7)

    def test_multiplies_every_layout_and_output(self):
        with harness.stub(self.server.address) as stub:
            for transpose_a in (False, True):
                for transpose_b in (False, True):
                    for output in (pb.BF16, pb.FP32):
                        m, n, k = 37, 53, 71
                        a = harness.normal_bf16(self.rng, *((k, m) if transpose_a else (m, k)))
                        b = harness.normal_bf16(self.rng, *((n, k) if transpose_b else (k, n)))
                        request = pb.MatmulRequest(a=harness.operand(a, transpose_a),
                                                   b=harness.operand(b, transpose_b),
                                                   output_dtype=output)
                        response = stub.Matmul(request, timeout=30)
                        self.assertEqual((response.rows, response.cols), (m, n))
                        self.assertEqual(response.dtype, output)
                        self.assertEqual(len(response.d), m * n * (2 if output == pb.BF16 else 4))
                        self.assertTrue(response.kernel)
                        harness.close_enough(self, request, response)

    def test_output_type_defaults_to_bf16(self):
        with harness.stub(self.server.address) as stub:
            response = stub.Matmul(harness.random_request(self.rng, 2, 3, 4,
                                                          pb.DTYPE_UNSPECIFIED), timeout=30)
            self.assertEqual(response.dtype, pb.BF16)

    def test_same_bits_as_our_client(self):
        m, n, k = 65, 130, 257
        a, b = harness.normal_bf16(self.rng, m, k), harness.normal_bf16(self.rng, k, n)
        with harness.stub(self.server.address) as stub:
            stock = stub.Matmul(harness.request(a, b), timeout=30).d
        with tempfile.TemporaryDirectory() as folder:
            paths = {name: os.path.join(folder, name + ".npy") for name in "abd"}
            np.save(paths["a"], a.view("V2"))
            np.save(paths["b"], b.view("V2"))
            for address in (self.server.address, self.server.unix):
                result = harness.client("matmul", paths["a"], paths["b"], "-o", paths["d"],
                                        server=address)
                self.assertEqual(result.returncode, 0, result.stderr)
                ours = np.load(paths["d"])
                self.assertEqual(ours.shape, (m, n))
                self.assertEqual(ours.tobytes(), stock)

    def test_padded_rows_give_the_bits_of_dense_ones(self):
        m, n, k, ld = 5, 9, 11, 16
        a, b = harness.normal_bf16(self.rng, m, k), harness.normal_bf16(self.rng, k, n)
        padded = np.full((m, ld), 0x7FC0, np.uint16)  # NaN between the rows
        padded[:, :k] = a
        with harness.stub(self.server.address) as stub:
            dense = stub.Matmul(harness.request(a, b), timeout=30).d
            for count in (m * ld, (m - 1) * ld + k):
                request = harness.request(a, b)
                request.a.ld = ld
                request.a.inline = padded.reshape(-1)[:count].tobytes()
                self.assertEqual(stub.Matmul(request, timeout=30).d, dense)

    def test_nan_and_inf_travel_and_nan_is_canonical(self):
        a = harness.to_bf16(np.eye(3))
        b = np.array([[0xFFC1, 0x3F80], [0x7F80, 0x3F80], [0x3F80, 0xFF80]], np.uint16)
        with harness.stub(self.server.address) as stub:
            d = np.frombuffer(stub.Matmul(harness.request(a, b), timeout=30).d, np.uint16)
        # Row i is row i of B plus 0 · the others; 0 · Inf is NaN, 1 · -Inf + 0 · 1 is -Inf.
        self.assertEqual([hex(x) for x in d], ["0x7fc0"] * 5 + ["0xff80"])
        one = np.array([[0x3F80]], np.uint16)
        with harness.stub(self.server.address) as stub:
            for bits, expected in ((0x7F80, 0x7F80), (0xFF80, 0xFF80), (0xFFFF, 0x7FC0)):
                answer = stub.Matmul(harness.request(one, np.array([[bits]], np.uint16)),
                                     timeout=30)
                self.assertEqual(np.frombuffer(answer.d, np.uint16)[0], expected)

    def test_timings_add_up(self):
        with harness.stub(self.server.address) as stub:
            response = stub.Matmul(harness.random_request(self.rng, 256, 256, 256), timeout=30)
        timings = response.timings
        self.assertGreater(timings.kernel_ns, 0)
        self.assertGreater(timings.decode_ns, 0)
        self.assertGreater(response.tflops, 0)
        self.assertAlmostEqual(response.tflops, 2 * 256**3 / timings.kernel_ns / 1e3,
                               delta=0.01 * response.tflops)

    def test_result_above_4_mib_is_refused_by_a_stock_client_only(self):
        request = harness.random_request(self.rng, 2048, 2048, 1)  # 8 MiB of bf16
        with harness.stub(self.server.address) as stub:
            with self.assertRaises(grpc.RpcError) as caught:
                stub.Matmul(request, timeout=30)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        options = [("grpc.max_receive_message_length", -1)]
        with harness.stub(self.server.address, options) as stub:
            harness.close_enough(self, request, stub.Matmul(request, timeout=30))

    def test_server_info(self):
        with harness.stub(self.server.address) as stub:
            info = stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=30)
        self.assertTrue(info.ready)
        self.assertFalse(info.draining)
        self.assertEqual(info.device, self.server.device)
        self.assertEqual(info.max_message_bytes, 128 << 20)
        self.assertTrue(info.version and info.commit and info.kernels)

    def test_health_check_and_watch(self):
        for address in (self.server.address, self.server.unix):
            with harness.health_stub(address) as health:
                for service in ("", "tcgemm.v1.MatmulService"):
                    asked = harness.health_pb2.HealthCheckRequest(service=service)
                    serving = harness.health_pb2.HealthCheckResponse.SERVING
                    self.assertEqual(health.Check(asked, timeout=10).status, serving)
                    watch = health.Watch(asked, timeout=10)
                    self.assertEqual(next(watch).status, serving)
                    watch.cancel()
                unknown = harness.health_pb2.HealthCheckRequest(service="nobody")
                self.assertEqual(harness.code_of(lambda: health.Check(unknown, timeout=10)),
                                 grpc.StatusCode.NOT_FOUND)

    def test_reflection_lists_and_describes(self):
        for address in (self.server.address, self.server.unix):
            with harness.stub(address, stub_class=reflection_pb2_grpc.ServerReflectionStub) as s:
                asked = [reflection_pb2.ServerReflectionRequest(list_services=""),
                         reflection_pb2.ServerReflectionRequest(
                             file_containing_symbol="tcgemm.v1.MatmulService")]
                listed, described = list(s.ServerReflectionInfo(iter(asked), timeout=10))
            names = {service.name for service in listed.list_services_response.service}
            self.assertLessEqual({"tcgemm.v1.MatmulService", "grpc.health.v1.Health"}, names)
            self.assertTrue(described.file_descriptor_response.file_descriptor_proto)

    def test_what_is_not_offered_is_unimplemented(self):
        with harness.stub(self.server.address) as stub:
            with self.assertRaises(grpc.RpcError) as caught:
                list(stub.HoldRegion(iter([pb.HoldRegionRequest()]), timeout=10))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
            self.assertIn("--allow-shared-memory", caught.exception.details())

    def test_pings_every_ten_seconds_do_not_end_the_connection(self):
        # Stock keepalive meets gRPC's default of 5 minutes with GOAWAY too_many_pings; ours allows
        # a ping every 5 s without data. 10 s is what the client library and many others use.
        options = [("grpc.keepalive_time_ms", 10000), ("grpc.keepalive_timeout_ms", 5000),
                   ("grpc.keepalive_permit_without_calls", 1),
                   ("grpc.http2.max_pings_without_data", 0)]
        with harness.stub(self.server.address, options, harness.health_pb2_grpc.HealthStub) as h:
            watch = h.Watch(harness.health_pb2.HealthCheckRequest(), timeout=45)
            next(watch)
            with self.assertRaises(grpc.RpcError) as caught:
                next(watch)  # nothing changes: ends by its own deadline, after four pings
            self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)


if __name__ == "__main__":
    harness.main()
