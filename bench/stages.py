#!/usr/bin/env python3
"""Where a call's time goes: the server's stages against the time that clients measure.

    stages.py BIN_DIR [--device cuda] [--size 4096] [--clients 1,8] [--seconds 3]

Over a unix socket and TCP. A JSON line each: means in ms of the stages (from /metrics; warm-up calls
included), of the call as the server sees it, and of the clients (clients / requests per second: they
call one after the other), and what share of the last the stages add up to.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import live_server

STAGES = ("receive", "decode", "queue", "copy_in", "kernel", "verify", "copy_out", "send")


def mean_ms(before, after, metric):
    count = after[metric.replace("%", "_count")] - before[metric.replace("%", "_count")]
    seconds = after[metric.replace("%", "_sum")] - before[metric.replace("%", "_sum")]
    return 1e3 * seconds / count if count else 0.0


def measure(folder, server, address, arguments, clients):
    before = server.samples()
    run = subprocess.run(
        [os.path.join(folder, "rpc_bench"), "--server", address, "--sizes", str(arguments.size),
         "--clients", str(clients), "--seconds", str(arguments.seconds)],
        capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"stages.py: rpc_bench ended with {run.returncode}: {run.stdout[-2000:]}"
                 f"{run.stderr[-2000:]}")
    bench = json.loads(run.stdout.strip().split("\n")[-1])
    after = server.samples()
    stages = {stage: mean_ms(before, after,
                             f'tcgemm_stage_duration_seconds%{{stage="{stage}"}}')
              for stage in STAGES}
    client_ms = 1e3 * clients / bench["requests_per_s"]
    return {"transport": bench["transport"], "n": arguments.size, "clients": clients,
            "client_ms": client_ms, "client_p50_ms": bench["p50_ms"],
            "ratio_to_echo": bench["ratio_to_echo"], "echo_p50_ms": bench["echo_p50_ms"],
            "server_ms": mean_ms(before, after,
                                 'tcgemm_request_duration_seconds%{method="Matmul"}'),
            "stages_ms": stages, "stages_share": sum(stages.values()) / client_ms}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--clients", default="1,8")
    parser.add_argument("--seconds", type=float, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as sockets:
        server = live_server.Server(
            arguments.folder, "--listen", f"unix:{sockets}/tcgemm", "--pinned-bytes", "4GiB",
            "--queue-bytes", "4GiB", device=arguments.device)
        try:
            for address in server.addresses:
                for clients in map(int, arguments.clients.split(",")):
                    row = measure(arguments.folder, server, address, arguments, clients)
                    print(json.dumps(row), flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
