#!/usr/bin/env python3
"""No kernel spills, and each chip's code is there.    usage: kernel_resources_test.py OBJECT.o...

Reads OBJECT.log, where cmake/keep_stderr.sh put what ptxas said of each kernel, and prints a table
of registers and memory.
"""

import os
import re
import sys

# The SASS that each source must hold.
CHIPS = {
    "cp_async_mma.cu": {"sm_80", "sm_90"},
    "simt.cu": {"sm_80", "sm_90", "sm_120a"},
    "split_reduce.cu": {"sm_90"},
    "tma_mma.cu": {"sm_90", "sm_120a"},
    "tma_wgmma.cu": {"sm_90a"},
}
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
# ptxas ignored setmaxnreg, or made wgmma wait after each instruction: half the speed, no error.
SLOW = re.compile(r"C7508|C7510|setmaxnreg.*ignored|wgmma.*serialized", re.IGNORECASE)
SMEM = re.compile(r"(\d+) bytes smem")


def kernels_of(text):
    """[{name, chip, stack, spills, registers, smem}] of a log."""
    kernels = []
    for line in text.split("\n"):
        if match := ENTRY.search(line):
            kernels.append({"name": match[1], "chip": match[2], "smem": 0})
        elif kernels and (match := STACK.search(line)):
            kernels[-1]["stack"] = int(match[1])
            kernels[-1]["spills"] = int(match[2]) + int(match[3])
        elif kernels and (match := REGISTERS.search(line)):
            kernels[-1]["registers"] = int(match[1])
            if match := SMEM.search(line):
                kernels[-1]["smem"] = int(match[1])
    return kernels


def frame_of(chip):
    """Bytes of stack that are no spill: ptxas 13.0 keeps 8 for tma_mma on sm_120a, whose PTX has no
    local memory, and for no other chip."""
    return 8 if chip == "sm_120a" else 0


def check(source, kernels):
    chips = {k["chip"] for k in kernels}
    for chip in sorted(CHIPS[source] - chips):
        yield f"{source}: no code for {chip}"
    for kernel in kernels:
        where = f"{source}, {kernel['chip']}, {kernel['name']}"
        if "stack" not in kernel or "registers" not in kernel:
            yield f"{where}: ptxas does not say what it uses"
        elif kernel["stack"] > frame_of(kernel["chip"]) or kernel["spills"]:
            yield f"{where}: {kernel['stack']} bytes of stack, {kernel['spills']} of spills"


def main():
    complaints, seen = [], set()
    for path in sys.argv[1:]:
        source = os.path.basename(path).removesuffix(".o")
        seen.add(source)
        with open(path + ".log", encoding="utf-8") as file:
            text = file.read()
        kernels = kernels_of(text)
        complaints += [f"{source}: {line}" for line in text.split("\n") if SLOW.search(line)]
        complaints += check(source, kernels)
        for k in kernels:
            print(f"{source:16} {k['chip']:8} registers {k.get('registers', '?'):>3} "
                  f"stack {k.get('stack', '?')} spills {k.get('spills', '?')} "
                  f"smem {k['smem']} {k['name']}")
    complaints += [f"{source} was not built" for source in CHIPS if source not in seen]
    print("\n".join(complaints) or "nothing spills")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
