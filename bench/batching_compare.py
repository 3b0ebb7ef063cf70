#!/usr/bin/env python3
"""What a batch saves on this device: rpc_bench against a server that batches and one that does not.

    batching_compare.py BIN_DIR [--size 128 | --shape 16x4096x4096] [--clients 64] [--seconds 2]
                        [--rounds 3] [--delay-us 0]

Two servers take turns; the one that batches waits --delay-us for company. With --shape B is on the server, and requests share it. Prints a JSON object:
medians over the rounds of requests per second, p50 of 64 clients and of one, kernel seconds per
request and the mean batch (from /metrics; by_answers: as the clients count it), and their ratios.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

import live_server


def totals(server):
    samples = server.samples()
    return {"kernel_seconds": live_server.total(samples, "tcgemm_kernel_seconds_total"),
            "launches": live_server.total(samples, "tcgemm_launches_total"),
            "batched": live_server.total(samples, "tcgemm_batch_size_sum"),
            "batches": live_server.total(samples, "tcgemm_batch_size_count")}


def measure(folder, server, arguments, clients):
    what = ["--sizes", str(arguments.size)]
    if arguments.shape:
        what = ["--paths", "resident_b", "--shapes", arguments.shape]
    before = totals(server)
    run = subprocess.run(
        [os.path.join(folder, "rpc_bench"), "--server", server.addresses[0], "--clients",
         str(clients), "--seconds", str(arguments.seconds)] + what,
        capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"batching_compare.py: rpc_bench ended with {run.returncode}: "
                 f"{run.stdout[-2000:]}{run.stderr[-2000:]}")
    line = json.loads(run.stdout.strip().split("\n")[-1])
    after = totals(server)
    moved = {key: after[key] - before[key] for key in after}
    if moved["launches"] != moved["batches"]:
        sys.exit(f"batching_compare.py: {moved['launches']} launches, {moved['batches']} batches")
    return {"requests_per_s": line["requests_per_s"], "p50_ms": line["p50_ms"],
            "ratio_to_echo": line["requests_per_s"] / line["echo_requests_per_s"],
            "kernel_us_per_request": 1e6 * moved["kernel_seconds"] / moved["batched"],
            "mean_batch": moved["batched"] / moved["batches"],
            "mean_batch_by_answers": line["mean_batch"]}


def medians(rounds):
    return {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--shape")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-us", type=int, default=0)
    arguments = parser.parse_args()
    servers = {
        "batching": live_server.Server(arguments.folder, "--max-batch", "64",
                                       "--max-queue-delay-us", str(arguments.delay_us)),
        "one_by_one": live_server.Server(arguments.folder, "--max-batch", "1")}
    rounds = {(name, clients): [] for name in servers for clients in (arguments.clients, 1)}
    for _ in range(arguments.rounds):
        for name, clients in rounds:
            rounds[name, clients].append(measure(arguments.folder, servers[name], arguments, clients))
    for server in servers.values():
        server.stop()
    many = {name: medians(rounds[name, arguments.clients]) for name in servers}
    lone = {name: medians(rounds[name, 1]) for name in servers}
    print(json.dumps({
        "size": arguments.shape or arguments.size, "clients": arguments.clients,
        "delay_us": arguments.delay_us,
        "many": many, "lone": lone,
        "requests_per_s_ratio":
            many["batching"]["requests_per_s"] / many["one_by_one"]["requests_per_s"],
        "kernel_time_ratio": (many["one_by_one"]["kernel_us_per_request"]
                              / many["batching"]["kernel_us_per_request"]),
        "lone_p50_ratio": lone["batching"]["p50_ms"] / lone["one_by_one"]["p50_ms"]}))


if __name__ == "__main__":
    main()
