#!/usr/bin/env python3
"""How long small requests take while shared memory is being registered with the GPU.

    registration.py BIN_DIR [--gib 1] [--seconds 4] [--device cuda]

One client of 16x4096x4096 with B on the server calls over a unix socket, first alone, then while
another one opens and closes a region of --gib GiB again and again. A JSON object: latencies in ms.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import grpc

import live_server


def varint(value):
    out = bytearray()
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes(out + bytes([value]))


class Opener(threading.Thread):
    """Holds a region until the server says that it is there, then lets go; again and again."""

    def __init__(self, address, size):
        super().__init__()
        channel = grpc.insecure_channel(address)
        self.hold = channel.stream_stream("/tcgemm.v1.MatmulService/HoldRegion")
        self.request = b"\x08" + varint(size)  # HoldRegionRequest: field 1, bytes
        self.opened = []
        self.stopping = threading.Event()

    def run(self):
        while not self.stopping.is_set():
            over = threading.Event()

            def requests():
                yield self.request
                over.wait()  # pylint: disable=cell-var-from-loop

            start = time.monotonic()
            call = self.hold(requests())
            next(call)
            self.opened.append(time.monotonic() - start)
            over.set()
            for _ in call:
                pass


def bench(folder, address, seconds):
    run = subprocess.run(
        [os.path.join(folder, "rpc_bench"), "--server", address, "--paths", "resident_b",
         "--shapes", "16x4096x4096", "--clients", "1", "--seconds", str(seconds)],
        capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"registration.py: rpc_bench: {run.stdout[-1000:]}{run.stderr[-1000:]}")
    line = json.loads(run.stdout.strip().split("\n")[-1])
    return {key: round(line[key], 4) for key in ("p50_ms", "p99_ms", "calls")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("--gib", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = arguments.gib << 30
        server = live_server.Server(
            arguments.bin, "--listen", f"unix:{folder}/s", "--allow-shared-memory",
            "--shared-memory-bytes", str(2 * size), device=arguments.device)
        address = server.addresses[-1]
        alone = bench(arguments.bin, address, arguments.seconds)
        opener = Opener(address, size)
        opener.start()
        registering = bench(arguments.bin, address, arguments.seconds)
        opener.stopping.set()
        opener.join()
        server.stop()
    print(json.dumps({"gib": arguments.gib, "alone": alone, "registering": registering,
                      "regions": len(opener.opened),
                      "slowest_open_s": round(max(opener.opened), 3)}))


if __name__ == "__main__":
    main()
