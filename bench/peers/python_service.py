#!/usr/bin/env python3
"""The obvious Python service, as a peer: grpcio + torch, and clients that call it in a loop.

    python_service.py [--seconds 2] [--sizes 4096,1024,128] [--clients 1,8] [--csv FILE]

The server and every client are processes of their own. A request is m, n, k and the bytes of A and
B (bf16); the answer is the bytes of D (bf16). Prints a JSON line per measurement; the CSV has the
columns of rpc_bench's.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import struct
import sys
import tempfile
import time
from concurrent import futures

try:
    import grpc
    import torch
except ImportError as error:
    sys.exit(f"python_service.py needs grpcio and torch, of the GPU host's python3: {error}")

HEADER = struct.Struct("<qqq")
METHOD = "/peer.Matmul/Matmul"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
COLUMNS = ("path,transport,m,n,k,clients,p50_us,p99_us,gbytes_per_s,requests_per_s,limit_name,"
           "ratio_to_limit")


def multiply(request, _context):
    m, n, k = HEADER.unpack_from(request)
    data = bytearray(request)  # torch wants writable memory
    a = torch.frombuffer(data, dtype=torch.bfloat16, count=m * k, offset=HEADER.size)
    b = torch.frombuffer(data, dtype=torch.bfloat16, count=k * n, offset=HEADER.size + 2 * m * k)
    d = a.view(m, k).cuda() @ b.view(k, n).cuda()
    return d.cpu().view(torch.int16).numpy().tobytes()


def serve(address, ready):
    handler = grpc.unary_unary_rpc_method_handler(multiply)
    service, method = METHOD.strip("/").split("/")
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), options=OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port(address)
    torch.ones(8, 8, device="cuda", dtype=torch.bfloat16) @ torch.ones(
        8, 8, device="cuda", dtype=torch.bfloat16)
    server.start()
    ready.send(address if address.startswith("unix:") else f"127.0.0.1:{port}")
    ready.recv()  # until the measuring process says so, or is gone
    server.stop(None)


def call_in_a_loop(address, n, seconds, barrier, results):
    generator = torch.Generator().manual_seed(os.getpid())
    operand = torch.randn(2 * n, n, generator=generator).bfloat16().view(torch.int16)
    request = HEADER.pack(n, n, n) + operand.numpy().tobytes()
    with grpc.insecure_channel(address, options=OPTIONS) as channel:
        call = channel.unary_unary(METHOD)
        for _ in range(2):
            assert len(call(request)) == 2 * n * n
        barrier.wait(120)
        latencies = []
        start = time.perf_counter()
        while not latencies or time.perf_counter() - start < seconds:
            before = time.perf_counter()
            call(request)
            latencies.append(time.perf_counter() - before)
        results.put((latencies, time.perf_counter() - start))


def measure(context, address, n, clients, seconds):
    barrier = context.Barrier(clients)
    results = context.Queue()
    processes = [context.Process(target=call_in_a_loop,
                                 args=(address, n, seconds, barrier, results))
                 for _ in range(clients)]
    for process in processes:
        process.start()
    ended = [results.get(timeout=150 + seconds) for _ in processes]
    for process in processes:
        process.join()
    latencies = sorted(t for times, _ in ended for t in times)
    rate = sum(len(times) / wall for times, wall in ended)
    return {"path": "python_service", "transport": "unix" if address[:5] == "unix:" else "tcp",
            "m": n, "n": n, "k": n, "clients": clients,
            "p50_us": statistics.median(latencies) * 1e6,
            "p99_us": latencies[min(len(latencies) - 1, int(0.99 * len(latencies)))] * 1e6,
            "gbytes_per_s": rate * 6 * n * n / 1e9, "requests_per_s": rate,
            "limit_name": "", "ratio_to_limit": ""}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--sizes", default="4096,1024,128")
    parser.add_argument("--clients", default="1,8")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("python_service.py: torch sees no GPU")
    context = multiprocessing.get_context("spawn")  # neither CUDA nor gRPC survives a fork
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for address in (f"unix:{folder}/peer.sock", "127.0.0.1:0"):
            ours, theirs = context.Pipe()
            server = context.Process(target=serve, args=(address, theirs), daemon=True)
            server.start()
            if not ours.poll(120):
                sys.exit("python_service.py: the server did not start")
            bound = ours.recv()
            for n in map(int, arguments.sizes.split(",")):
                for clients in map(int, arguments.clients.split(",")):
                    row = measure(context, bound, n, clients, arguments.seconds)
                    rows.append(row)
                    print(json.dumps(row), flush=True)
            ours.send("end")
            server.join(20)
    if arguments.csv:
        with open(arguments.csv, "w", encoding="utf-8") as file:
            file.write(COLUMNS + "\n")
            for row in rows:
                values = [row[name] for name in COLUMNS.split(",")]
                file.write(",".join(f"{v:.4g}" if isinstance(v, float) else str(v)
                                    for v in values) + "\n")


if __name__ == "__main__":
    main()
