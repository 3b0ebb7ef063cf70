#!/usr/bin/env python3
"""How long a health check takes while clients send large messages.

    health_under_load.py BIN_DIR [--device cpu] [--clients 8] [--seconds 20]

Clients send 64 MiB each, over TCP and then over a unix socket, one call after the other, while one
connection asks grpc.health.v1 every 2 ms. A JSON line for each: latencies in ms of the checks under
load; of those of a second server, idle, asked in turns with the first (what the busy machine and this
process cost a check, whatever the server does); and of the first server before the load.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import grpc

import live_server

SHAPE = "16384x16x2048"  # A has 64 MiB
OWN = [("grpc.use_local_subchannel_pool", 1)]


def percentiles(seconds):
    ordered = sorted(seconds)
    return {name: round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)
            for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1))} | {"checks": len(ordered)}


SERVING = b"\x08\x01"  # HealthCheckResponse: field 1, status, is 1


class Checker:
    def __init__(self, address):
        channel = grpc.insecure_channel(address, options=OWN)
        self.call = channel.unary_unary("/grpc.health.v1.Health/Check")
        self.check()

    def check(self):
        """Seconds until the server has said SERVING."""
        start = time.perf_counter()
        answer = self.call(b"", timeout=30)
        taken = time.perf_counter() - start
        if answer != SERVING:
            sys.exit("health_under_load.py: a server is not SERVING")
        return taken


def check_for(seconds, *checkers):
    """Each in turn, every 2 ms; the times of each."""
    times = [[] for _ in checkers]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for checker, taken in zip(checkers, times):
            taken.append(checker.check())
        time.sleep(0.002)
    return times


def measure(arguments, server, address, idle_address):
    busy = Checker(address)
    idle = Checker(idle_address)
    quiet, _ = check_for(2, busy, idle)
    with subprocess.Popen(
            [os.path.join(arguments.bin, "tcgemm-client"), "--server", address, "--json", "bench",
             "--shape", SHAPE, "--clients", str(arguments.clients), "--lanes", "1",
             "--duration", f"{arguments.seconds + 3}s", "--warmup", "0s"],
            stdout=subprocess.PIPE, text=True) as load:
        while server.samples()["tcgemm_inflight_requests"] < 1:  # it makes its operands first
            time.sleep(0.1)
        loaded, control = check_for(arguments.seconds, busy, idle)
        report = json.loads(load.stdout.read())
    if load.returncode != 0:
        sys.exit(f"health_under_load.py: the load ended with {load.returncode}: {report}")
    return {"transport": "unix" if address.startswith("unix:") else "tcp",
            "clients": arguments.clients, "message_mib": 64, "load": os.getloadavg()[0],
            "requests_per_s": round(report["requests_per_s"], 2), "errors": report["errors"],
            "loaded_ms": percentiles(loaded), "idle_server_ms": percentiles(control),
            "before_ms": percentiles(quiet)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # So that every client may send at once.
        server = live_server.Server(arguments.bin, "--listen", f"unix:{folder}/s.sock",
                                    "--max-message-bytes", "66MiB", device=arguments.device)
        idle = live_server.Server(arguments.bin, device=arguments.device)
        for address in server.addresses:
            print(json.dumps(measure(arguments, server, address, idle.addresses[0])), flush=True)
        server.stop()
        idle.stop()


if __name__ == "__main__":
    main()
