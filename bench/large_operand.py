#!/usr/bin/env python3
"""Is the product right whose A has more than 2 GiB: streamed, and uploaded?

    large_operand.py BIN_DIR FOLDER [--rows 32768] [--inner 40960] [--columns 128]

Writes A (2.7 GB by default) and B into FOLDER, starts a server on the GPU, and compares the D of
`tcgemm-client matmul A B`, which streams what one message cannot hold, with that of `upload` and
`matmul @A B`: bit by bit; and a part of its rows, the first and the last among them, with torch in
fp64. Prints a JSON object. Exit: 0 right · 1 wrong.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np
import torch

import live_server

CHECKED_ROWS = 256


def write_matrix(path, rows, cols, seed):
    """Random bf16 bits, |x| < 2, as a .npy of '<V2'."""
    bits = np.random.default_rng(seed).integers(0, 2**32, rows * cols // 2, np.uint32)
    bits &= 0xBFFFBFFF
    array = bits.view(np.uint16).reshape(rows, cols)
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<V2", "fortran_order": False, "shape": (rows, cols)})
        array.tofile(file)
    return array


def to_float64(bits):
    return torch.from_numpy((bits.astype(np.uint32) << 16).view(np.float32)).cuda().double()


def read_bits(path):
    with open(path, "rb") as file:
        np.lib.format.read_magic(file)
        shape, _, _ = np.lib.format.read_array_header_1_0(file)
        return np.fromfile(file, np.uint16).reshape(shape)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin")
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=32768)
    parser.add_argument("--inner", type=int, default=40960)
    parser.add_argument("--columns", type=int, default=128)
    arguments = parser.parse_args()
    at = {name: os.path.join(arguments.folder, name + ".npy") for name in ("a", "b", "d1", "d2")}
    a = write_matrix(at["a"], arguments.rows, arguments.inner, 1)
    b = write_matrix(at["b"], arguments.inner, arguments.columns, 2)
    server = live_server.Server(arguments.bin, "--listen", f"unix:{arguments.folder}/s",
                                "--resident-bytes", "8GiB")

    def client(*words):
        start = time.monotonic()
        subprocess.run([os.path.join(arguments.bin, "tcgemm-client"), "--server",
                        server.addresses[-1], "--timeout", "120s", *words],
                       check=True, stdout=subprocess.DEVNULL)
        return round(time.monotonic() - start, 2)

    seconds = {"stream": client("matmul", at["a"], at["b"], "-o", at["d1"]),
               "upload": client("upload", at["a"], "--name", "big"),
               "matmul": client("matmul", "@big", at["b"], "-o", at["d2"])}
    server.stop()
    streamed, uploaded = read_bits(at["d1"]), read_bits(at["d2"])
    rows = np.unique(np.linspace(0, arguments.rows - 1, CHECKED_ROWS).astype(int))
    exact = to_float64(a[rows]) @ to_float64(b)
    scale = to_float64(a[rows]).abs() @ to_float64(b).abs()
    error = (to_float64(streamed[rows]) - exact).abs()
    # bf16's rounding, and the accumulation's 2e-6 of the sum of magnitudes (matrix/reference.h).
    worst = (error / (exact.abs() * 2**-8 + scale * 4e-6)).max().item()
    right = bool((streamed == uploaded).all()) and worst <= 1
    print(json.dumps({"a_bytes": a.nbytes, "same_bits": bool((streamed == uploaded).all()),
                      "worst_error_to_bound": round(worst, 4), "right": right,
                      "seconds": seconds}))
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
