#!/usr/bin/env python3
"""The roads of a GPU host beside their limits, in one run: who is how far from what could be.

    road_limits.py BIN_DIR OUT_DIR [STEP...]

Steps: right pcie lone shared resident batching lanes registration large health; all by default. Each
writes what it saw to OUT_DIR/road_STEP.jsonl; a table with a line per claim comes last.
LD_LIBRARY_PATH as kernel_bench needs it (gpu_host.sh has it set). Exit: 0 · 1 a step failed (a claim
that does not hold is said in the table, and fails nothing).
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import live_server

HERE = os.path.dirname(os.path.abspath(__file__))
SERVER = ("--pinned-bytes", "4GiB", "--queue-bytes", "4GiB", "--resident-bytes", "16GiB",
          "--allow-shared-memory", "--shared-memory-bytes", "4GiB")
# 17 to 134 MB in, 34 MB out, and 100 MB both ways.
LANE_SHAPES = "2048x64x4096,4096x64x4096,4096x64x8192,8192x64x8192,4096x4096x64,4096x4096x4096"


class Bench:
    def __init__(self, folder, out):
        self.folder, self.out = folder, out
        self.table, self.failed, self.bus, self.step = [], False, {}, ""
        self.sockets = tempfile.mkdtemp()

    def run(self, *command):
        """The JSON lines that the command prints, kept; [] when it fails."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        lines = [json.loads(line) for line in done.stdout.split("\n") if line.startswith("{")]
        with open(os.path.join(self.out, f"road_{self.step}.jsonl"), "a", encoding="utf-8") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")
        if done.returncode != 0:
            self.failed = True
            self.say("FAILED", f"{command[0]}: {done.stdout[-300:]} {done.stderr[-600:]}")
            return []
        return lines

    def python(self, script, *words):
        return self.run(sys.executable, os.path.join(HERE, script), *words)

    def rpc(self, addresses, *words):
        servers = [word for address in addresses for word in ("--server", address)]
        return self.run(os.path.join(self.folder, "rpc_bench"), *servers, *words)

    def server(self, *flags):
        name = f"unix:{self.sockets}/{time.monotonic_ns()}"
        return live_server.Server(self.folder, "--listen", name, *SERVER, *flags)

    def say(self, what, text, holds=None):
        mark = {None: "    ", True: "yes ", False: "NO  "}[holds]
        self.table.append(f"{mark}{self.step:<13}{what:<38}{text}")
        print(self.table[-1], flush=True)


def right(bench):
    """The ways that bytes go here, each proven right."""
    server = bench.server()
    for name, words in (
            ("in bands", ("--random", "4096x4096x4096", "--lanes", "1")),
            ("in bands, shared memory", ("--random", "4096x4096x4096", "--shared-memory")),
            ("lone and small", ("--random", "16x4096x4096", "--lanes", "1")),
            ("all in place", ("--random", "64x64x64", "--lanes", "1"))):
        lines = bench.run(os.path.join(bench.folder, "tcgemm-client"), "--server",
                          server.addresses[-1], "--json", "matmul", *words, "--check")
        bench.say(name, "right" if lines else "wrong", bool(lines))
    server.stop()


def pcie(bench):
    bench.bus = bench.python("pcie.py")[0]
    bench.say("GB/s in, out, each way at once", " ".join(str(v) for v in bench.bus.values()))


def lone(bench):
    server = bench.server()
    lines = bench.rpc(server.addresses, "--paths", "resident_b", "--shapes", "16x4096x4096",
                      "--clients", "1,64", "--seconds", "1.5")
    server.stop()
    for line in lines:
        stages = {key: f"{1e3 * ms:.0f}" for key, ms in line["stages_p50"].items()}
        text = (f"p50 {1e3 * line['p50_ms']:.0f} us, echo {1e3 * line['echo_p50_ms']:.0f}; req/s "
                f"{line['ratio_to_echo']:.2f} of it; batch {line['mean_batch']:.1f}; us decode "
                f"{stages['decode_ms']} queue {stages['queue_ms']} in {stages['copy_in_ms']} kernel "
                f"{stages['kernel_ms']} out {stages['copy_out_ms']}")
        holds = (line["p50_ms"] <= line["echo_p50_ms"] + 0.06 if line["clients"] == 1
                 else line["ratio_to_echo"] >= 0.6)
        bench.say(f"{line['transport']} {line['clients']} clients", text,
                  holds if line["transport"] == "unix" else None)


def shared(bench):
    server = bench.server()
    lines = []
    for size, clients in (("4096", "1"), ("2048", "1,8")):
        lines += bench.rpc(server.addresses[-1:], "--paths", "shared_memory,shared_memory_resident",
                           "--sizes", size, "--clients", clients, "--seconds", "1")
    server.stop()
    for line in lines:
        n, whole = line["n"], line["path"] == "shared_memory"
        name = f"{line['path']} {n} {line['clients']} clients"
        if line["clients"] == 1:
            ms = line["stages_p50"]["kernel_ms"] + 2e-6 * n * n / bench.bus["from_device"]
            if whole:
                ms += 4e-6 * n * n / bench.bus["to_device"]
            ratio = line["p50_ms"] / ms
            bench.say(name, f"p50 {line['p50_ms']:.3f} ms, {ratio:.2f} of its parts {ms:.3f}",
                      ratio <= (1.25 if whole else 1.3) if n == 4096 else None)
        else:
            inwards = line["gbytes_per_s"] * (2 / 3 if whole else 1)
            limit = bench.bus["each_way_at_once" if whole else "from_device"]
            bench.say(name, f"busier way {inwards:.1f} of {limit:.1f} GB/s, "
                            f"{inwards / limit:.2f}",
                      inwards / limit >= 0.85 if n == 2048 and whole else None)


def resident(bench):
    kernel = {}
    for size in (8192, 4096):
        folder = os.path.join(bench.out, f"kernel_{size}")
        os.makedirs(folder, exist_ok=True)
        bench.run(os.path.join(bench.folder, "kernel_bench"), "--kernels", "tma_wgmma", "--no-batch",
                  "--rested-rounds", "0", "--sustained", "0.5", "--cells",
                  f"{size},{size},{size},NN,bf16", "--out", folder)
        with open(os.path.join(folder, "kernels.csv"), encoding="utf-8") as file:
            header, row = (line.strip().split(",") for line in list(file)[:2])
        kernel[size] = float(dict(zip(header, row))["ours_tflops"])
    server = bench.server()
    lines = bench.rpc(server.addresses[-1:], "--paths", "resident", "--shapes",
                      "8192x8192x8192,4096x4096x4096", "--clients", "1,8", "--seconds", "2")
    server.stop()
    for line in lines:
        n, ratio = line["n"], line["tflops"] / kernel[line["n"]]
        name = f"{n} {line['clients']} clients"
        if line["clients"] == 8:
            bench.say(name, f"{line['tflops']:.0f} of {kernel[n]:.0f} TFLOPS, {ratio:.3f}",
                      ratio >= 0.95 if n == 8192 else None)
        else:
            beside = line["p50_ms"] - line["stages_p50"]["kernel_ms"]
            bench.say(name, f"p50 {line['p50_ms']:.3f} ms, kernel and {beside:.3f}",
                      beside <= 0.15 if n == 4096 else None)


def batching(bench):
    for delay in ("0", "200"):
        compare_batching(bench, delay)


def compare_batching(bench, delay):
    for line in bench.python("batching_compare.py", bench.folder, "--shape", "16x4096x4096",
                             "--seconds", "1", "--rounds", "1", "--delay-us", delay):
        many = line["many"]["batching"]
        bench.say(f"window of {delay} us", f"{many['ratio_to_echo']:.2f} of the echo's req/s, p50 "
                                           f"{many['p50_ms']:.2f} ms")
        bench.say("kernel s a request, one by one/batch", f"{line['kernel_time_ratio']:.1f}",
                  line["kernel_time_ratio"] >= 4)
        agree = many["mean_batch_by_answers"] / many["mean_batch"]
        bench.say("mean batch, metric and answers",
                  f"{many['mean_batch']:.1f} {many['mean_batch_by_answers']:.1f}",
                  0.9 <= agree <= 1.1)
        bench.say("req/s, batching/one by one", f"{line['requests_per_s_ratio']:.2f}")


def lanes(bench):
    server = bench.server()
    lines = bench.rpc(server.addresses, "--paths", "lanes", "--shapes", LANE_SHAPES,
                      "--lanes", "2,4,8", "--sizes", "8", "--seconds", "0.8")
    server.stop()
    for line in lines:
        large = line["shape"] == "4096x4096x4096" and line["lanes"] == 8
        bench.say(f"{line['transport']} {line['shape']} {line['lanes']} lanes",
                  f"{line['mbytes']:.0f} MB, {line['p50_ms']:.2f} ms, "
                  f"{1 / line['ratio_to_single']:.2f} of one call",
                  1 / line["ratio_to_single"] <= 0.45 if large else None)


def registration(bench):
    for line in bench.python("registration.py", bench.folder, "--seconds", "2"):
        bench.say("p99 ms alone, while registering 1 GiB",
                  f"{line['alone']['p99_ms']:.3f} {line['registering']['p99_ms']:.3f}, p50 "
                  f"{line['registering']['p50_ms']:.3f}; {line['regions']} regions")


def large(bench):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for line in bench.python("large_operand.py", bench.folder, folder):
            bench.say("A above 2 GiB", f"{line['a_bytes'] / 2**30:.2f} GiB, same bits "
                      f"{line['same_bits']}, error {line['worst_error_to_bound']} of its bound, "
                      f"s {line['seconds']}", line["right"])


def health(bench):
    for line in bench.python("health_under_load.py", bench.folder, "--device", "cuda",
                             "--seconds", "5"):
        bench.say(f"{line['transport']} health under load",
                  f"p50 {line['loaded_ms']['p50']} p99 {line['loaded_ms']['p99']} ms, idle server "
                  f"{line['idle_server_ms']['p99']}", line["loaded_ms"]["p99"] < 20)


STEPS = {step.__name__: step for step in (right, pcie, lone, shared, resident, batching, lanes,
                                          registration, large, health)}


def main():
    if len(sys.argv) < 3 or not set(sys.argv[3:]) <= set(STEPS):
        sys.exit(__doc__)
    bench = Bench(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]))
    os.makedirs(bench.out, exist_ok=True)
    for name in sys.argv[3:] or STEPS:
        bench.step = name
        start = time.monotonic()
        try:
            STEPS[name](bench)
        except (Exception, SystemExit) as error:  # pylint: disable=broad-except
            bench.failed = True
            bench.say("FAILED", repr(error)[:300])
        print(f"{name} took {time.monotonic() - start:.0f} s", flush=True)
    os.rmdir(bench.sockets)
    print("\n".join(["-- road"] + bench.table))
    sys.exit(1 if bench.failed else 0)


if __name__ == "__main__":
    main()
