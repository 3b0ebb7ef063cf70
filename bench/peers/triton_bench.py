#!/usr/bin/env python3
"""Inductor's Triton kernels and torch's cuBLAS on the squares of kernel_bench, as peers.

    triton_bench.py [--sizes 1024,2048,4096,8192] [--csv FILE]

D = A·Bᵀ in bf16: random normal data, operand sets that exceed L2, medians of alternating bursts.
Prints CSV lines that merge into rungs.csv; the ratio is to torch's own cuBLAS in this run, so
ratio_to_cublaslt holds what PyTorch's choice gives, not the best of eight heuristics.
"""

import argparse
import statistics
import sys

try:
    import torch
    import torch._inductor.config as inductor
    import triton  # noqa: F401  (Inductor would silently use cuBLAS without it)
except ImportError as error:
    sys.exit(f"triton_bench.py needs torch and triton, of the GPU host's python3: {error}")

ROTATED_BYTES = 120 << 20
BURST_SECONDS = 0.05
BURSTS = 8
PEAK_TFLOPS = 989.4  # dense bf16 of an H100 or H200 SXM, NVIDIA's datasheet


def make_sets(n):
    count = max(2, min(256, ROTATED_BYTES // (4 * n * n) + 1))
    make = lambda: torch.randn(n, n, device="cuda", dtype=torch.float32).bfloat16()
    return [(make(), make()) for _ in range(count)]


def multiply(a, b):
    return a @ b.t()


def burst(function, sets, launches):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for i in range(launches):
        function(*sets[i % len(sets)])
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / launches


def compile_with_triton(sets):
    """A compiled product whose kernels are Triton's alone."""
    torch._dynamo.reset()
    inductor.max_autotune_gemm_backends = "TRITON"
    compiled = torch.compile(multiply, mode="max-autotune-no-cudagraphs", dynamic=False)
    a, b = sets[0]
    result = compiled(a, b).float()
    error = (result - multiply(a, b).float()).abs().max().item()
    if not error <= 8 * a.shape[0] ** 0.5 / 256:
        sys.exit(f"triton_bench.py: Triton's product is off by {error}")
    return compiled


def measure(n):
    sets = make_sets(n)
    arms = {"torch_cublas": multiply, "inductor_triton": compile_with_triton(sets)}
    seconds = {name: [] for name in arms}
    launches = {}
    for name, function in arms.items():
        burst(function, sets, 4)
        launches[name] = max(1, min(4000, int(BURST_SECONDS / burst(function, sets, 4))))
    for turn in range(-1, BURSTS):
        for name in list(arms) if turn % 2 == 0 else reversed(list(arms)):
            taken = burst(arms[name], sets, launches[name])
            if turn >= 0:
                seconds[name].append(taken)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name in arms:
        tflops = 2 * n**3 / medians[name] / 1e12
        yield (f"{name},{n},{tflops:.2f},{medians['torch_cublas'] / medians[name]:.4f},"
               f"{100 * tflops / PEAK_TFLOPS:.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sizes", default="1024,2048,4096,8192")
    parser.add_argument("--csv")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("triton_bench.py: torch sees no GPU")
    lines = ["kernel,n,tflops,ratio_to_cublaslt,percent_of_peak"]
    print(lines[0])
    for n in map(int, arguments.sizes.split(",")):
        for line in measure(n):
            lines.append(line)
            print(line, flush=True)
            if arguments.csv:  # as far as it got, should a time limit end it
                with open(arguments.csv, "w", encoding="utf-8") as file:
                    file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
