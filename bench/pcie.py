#!/usr/bin/env python3
"""What the bus carries: pinned copies of 64 MiB to the GPU, from it, and both ways at once.

    pcie.py [--seconds 1]

Prints a JSON object: GB/s to the device, from it, and in each direction when both are busy.
"""

import argparse
import json
import statistics
import sys
import time

try:
    import torch
except ImportError as error:
    sys.exit(f"pcie.py needs torch, of the GPU host's python3: {error}")

BYTES = 64 << 20
COPIES = 8  # of one measurement: the first one's latency does not matter


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1)
    arguments = parser.parse_args()
    host = [torch.randint(256, (BYTES,), dtype=torch.uint8).pin_memory() for _ in range(2)]
    device = [torch.empty(BYTES, dtype=torch.uint8, device="cuda") for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in range(2)]

    def rate(directions):
        """GB/s of each, while all of them copy."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(COPIES):
            for way in directions:
                to, source = (device, host) if way == 0 else (host, device)
                with torch.cuda.stream(streams[way]):
                    to[way].copy_(source[way], non_blocking=True)
        torch.cuda.synchronize()
        return COPIES * BYTES / (time.perf_counter() - start) / 1e9

    cases = {"to_device": [0], "from_device": [1], "each_way_at_once": [0, 1]}
    rates = {name: [] for name in cases}
    for directions in cases.values():
        rate(directions)  # warm-up
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        for name, directions in cases.items():
            rates[name].append(rate(directions))
    print(json.dumps({name: round(statistics.median(r), 2) for name, r in rates.items()}))


if __name__ == "__main__":
    main()
