#!/usr/bin/env python3
"""Every kind of client at full rate against one server on the CPU, while clients are killed and holes
are punched into shared memory. At the end nothing is left and memory did not grow.

  soak.py [--seconds 600] [--seed N] [--out FILE.json]      with TCGEMM_BIN and TCGEMM_STUBS set

Exit 1, with what was found, when the server ended, a client met what it must not meet, or anything is
left: calls, leases, regions, matrices that cannot be deleted, descriptors, threads, memory."""

import argparse
import contextlib
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
import harness  # noqa: E402
import region_client  # noqa: E402
from harness import pb  # noqa: E402

KINDS = ["unary", "unary", "stream", "stream", "upload", "upload", "handles", "region", "region",
         "command"]
MIB = 1 << 20
# What gRPC keeps for itself between two moments without a call: its threads come and go.
SPARE_THREADS = 16
SPARE_FDS = 8
LIBC = ctypes.CDLL(None, use_errno=True)
KEEP_SIZE, PUNCH_HOLE = 1, 2


class Client:
    def __init__(self, server, kind, seed):
        self.kind = kind
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "soak_clients.py"), kind, server.address,
             server.unix, str(seed)], stderr=subprocess.PIPE, text=True, start_new_session=True)

    def kill(self):
        """What it had to say, if it had ended before; else nothing."""
        ended = self.process.poll() is not None
        with contextlib.suppress(ProcessLookupError):  # with the commands that it runs
            os.killpg(self.process.pid, signal.SIGKILL)
        _, errors = self.process.communicate()
        return f"{self.kind}: {errors[-2000:]}" if ended else None


def punch(server, rng):
    """A hole in some region, through the server's own descriptor; whether there was one."""
    folder = f"/proc/{server.process.pid}/fd"
    fds = []
    for name in os.listdir(folder):
        try:
            if "memfd:tcgemm-region" in os.readlink(f"{folder}/{name}"):
                fds.append(name)
        except OSError:
            pass  # closed since
    if not fds:
        return 0
    try:
        fd = os.open(f"{folder}/{rng.choice(fds)}", os.O_RDWR)
    except OSError:
        return 0
    try:
        pages = os.fstat(fd).st_size // 4096
        first = rng.randrange(max(1, pages))
        LIBC.fallocate(fd, KEEP_SIZE | PUNCH_HOLE, ctypes.c_long(first * 4096),
                       ctypes.c_long(rng.randint(1, 256) * 4096))
    finally:
        os.close(fd)
    return 1


def delete_all(server):
    """Every matrix that killed clients left."""
    for address in (server.address, server.unix):
        with harness.stub(address) as stub:
            for matrix in stub.ListMatrices(pb.ListMatricesRequest(), timeout=30).matrices:
                harness.code_of(lambda handle=matrix.handle: stub.DeleteMatrix(
                    pb.DeleteMatrixRequest(handle=handle), timeout=30))


def what_is_left(server, fds, threads):
    """Empty when the server holds what it held before the first call."""
    delete_all(server)
    samples = server.metrics()
    left = {name: samples[name] for name in (
        "tcgemm_inflight_requests", "tcgemm_queue_depth", "tcgemm_queue_bytes",
        "tcgemm_resident_matrices", "tcgemm_resident_bytes",
        'tcgemm_pool_bytes{pool="pinned",state="used"}',
        'tcgemm_pool_bytes{pool="resident",state="used"}',
        'tcgemm_pool_bytes{pool="shared",state="used"}') if samples[name]}
    now = region_client.footprint(server)
    if now[0] > fds + SPARE_FDS:
        left["fds"] = f"{now[0]}, {fds} before"
    if now[1]:
        left["mappings of regions"] = now[1]
    if now[2] > threads + SPARE_THREADS:
        left["threads"] = f"{now[2]}, {threads} before"
    return left


def growth(rss):
    """Bytes by which the median of the last fifth exceeds that of the third one: of the second
    fifth the pages of resident memory may still come with their first use."""
    fifth = max(1, len(rss) // 5)
    third, last = sorted(rss[2 * fifth:3 * fifth]), sorted(rss[-fifth:])
    return last[len(last) // 2] - third[len(third) // 2]


def disturb(server, seconds, rng):
    """Runs the clients; (clients that ended by themselves, kills, holes, RSS each second)."""
    clients = [Client(server, kind, rng.randrange(1 << 30)) for kind in KINDS]
    wrong, kills, holes, rss = [], 0, 0, []
    start = time.monotonic()
    try:
        while time.monotonic() - start < seconds and server.alive() and not wrong:
            time.sleep(rng.uniform(0.05, 0.3))
            holes += punch(server, rng)
            if len(rss) <= time.monotonic() - start:
                rss.append(server.rss())
            if any(client.process.poll() is not None for client in clients):
                break
            if rng.random() < 0.15:
                at = rng.randrange(len(clients))
                wrong += filter(None, [clients[at].kill()])
                clients[at] = Client(server, KINDS[at], rng.randrange(1 << 30))
                kills += 1
    finally:
        for client in clients:
            wrong += filter(None, [client.kill()])
    return wrong, kills, holes, rss


def soak(seconds, seed):
    """(what was wrong, figures)"""
    rng = random.Random(seed)
    with harness.Server("--device=cpu", "--allow-shared-memory", "--resident-bytes=64MiB",
                        "--pinned-bytes=128MiB", "--queue-bytes=256MiB",
                        "--shared-memory-bytes=64MiB", "--max-message-bytes=64MiB",
                        unix=True) as server:
        fds, _, threads = region_client.footprint(server)
        wrong, kills, holes, rss = disturb(server, seconds, rng)
        if not server.alive():
            return wrong + [f"the server ended with {server.wait()}:\n{server.log()[-4000:]}"], {}
        left = {}
        for _ in range(100):
            left = what_is_left(server, fds, threads)
            if not left:
                break
            time.sleep(0.3)
        if left:
            wrong.append(f"left behind: {left}")
        if growth(rss) > 32 * MIB:
            wrong.append(f"memory grew by {growth(rss) / MIB:.0f} MiB: {rss}")
        samples = server.metrics()
        figures = {
            "seconds": seconds, "seed": seed, "kills": kills, "holes": holes,
            "calls": {method: harness.counted(samples, method) for method in (
                "Matmul", "MatmulStream", "UploadMatrix", "DownloadMatrix", "DeleteMatrix",
                "HoldRegion")},
            "rss_mib": [round(size / MIB) for size in rss[::max(1, len(rss) // 20)]],
            "growth_mib": round(growth(rss) / MIB, 1),
            "fds": [fds, region_client.footprint(server)[0]],
            "threads": [threads, region_client.footprint(server)[2]]}
        server.signal(signal.SIGTERM)
        if (code := server.wait()) != 0:
            wrong.append(f"the server drained with {code}:\n{server.log()[-2000:]}")
        return wrong, figures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--out", help="where the figures go, as JSON")
    arguments = parser.parse_args()
    wrong, figures = soak(arguments.seconds, arguments.seed)
    print(json.dumps(figures, indent=1))
    if arguments.out and figures:
        with open(arguments.out, "w", encoding="utf-8") as file:
            file.write(json.dumps(figures, indent=1) + "\n")
    for words in wrong:
        print(f"WRONG (seed {arguments.seed}): {words}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
