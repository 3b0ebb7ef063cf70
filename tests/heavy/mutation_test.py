#!/usr/bin/env python3
"""Flips one comparison at a time in code that must be right; some test must notice.

usage: mutation_test.py SOURCE_DIR BUILD_DIR

A sample (fixed seed) of the comparisons in each file below is mutated, one by one, in a copy of the
sources: the file's test binary is rebuilt and must fail (or not compile). Mutants known to change
nothing are listed in mutation_equivalents.txt, each with its reason.
"""

import os
import random
import re
import shutil
import subprocess
import sys

# file → the test target that must notice, and how many of its comparisons to flip.
TARGETS = {
    "matrix/reference.cc": ("reference_test", 4),
    "server/engine/batcher.cc": ("batcher_test", 5),
    "server/engine/buffer_pool.cc": ("buffer_pool_test", 4),
    "server/engine/job_queue.cc": ("engine_test", 3),
    "server/rpc/matmul_wire.cc": ("matmul_wire_test", 5),
    "server/rpc/receive_budget.cc": ("receive_budget_test", 3),
}
FLIPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
# A binary operator with a space on each side: templates, shifts, arrows and includes are not.
COMPARISON = re.compile(r"(?<= )(<=|>=|==|!=|<|>)(?= )")
SEED = 20261130


def comparisons(text):
    """[(line index, column, operator)] outside comments."""
    found = []
    for index, line in enumerate(text.splitlines()):
        code = line.split("//")[0]
        if code.lstrip().startswith("#"):
            continue
        found += [(index, m.start(), m.group()) for m in COMPARISON.finditer(code)]
    return found


def mutate(text, place):
    index, column, operator = place
    lines = text.splitlines(keepends=True)
    line = lines[index]
    lines[index] = line[:column] + FLIPS[operator] + line[column + len(operator):]
    return "".join(lines)


def equivalents(source):
    """{'file: stripped source line | operator'} that are known to change nothing."""
    path = os.path.join(source, "tests/heavy/mutation_equivalents.txt")
    with open(path, encoding="utf-8") as file:
        return {line.split("  # ")[0].strip() for line in file
                if line.strip() and not line.startswith("#")}


def run(command, **kwargs):
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)


def notices(build, target):
    """Why the mutant was found, or None."""
    if run(["cmake", "--build", build, "--target", target]).returncode:
        return "does not compile"
    try:
        result = run([os.path.join(build, "tests", target), "--gtest_brief=1"], timeout=60)
    except subprocess.TimeoutExpired:
        return "hangs"
    return "fails" if result.returncode else None


def main():
    source, build = sys.argv[1:]
    copy = os.path.join(build, "source")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("build", ".git"))
    tree = os.path.join(build, "build")
    subprocess.run(["cmake", "-S", copy, "-B", tree, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug",
                    "-DTCGEMM_CUDA=OFF", "-DTCGEMM_BENCH=OFF", "-DCMAKE_CXX_FLAGS=-O1 -g0"],
                   check=True, stdout=subprocess.DEVNULL)
    targets = sorted({target for target, _ in TARGETS.values()})
    subprocess.run(["cmake", "--build", tree, "--target", *targets], check=True,
                   stdout=subprocess.DEVNULL)
    known = equivalents(source)
    chance = random.Random(SEED)
    missed, tried = [], 0
    for name, (target, count) in TARGETS.items():
        reason = notices(tree, target)
        if reason:
            sys.exit(f"{target} {reason} without any mutation")
        path = os.path.join(copy, name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        lines = text.splitlines()
        places = [p for p in comparisons(text)
                  if f"{name}: {lines[p[0]].strip()} | {p[2]}" not in known]
        for place in sorted(chance.sample(places, min(count, len(places)))):
            tried += 1
            with open(path, "w", encoding="utf-8") as file:
                file.write(mutate(text, place))
            reason = notices(tree, target)
            what = f"{name}: {lines[place[0]].strip()} | {place[2]}"
            print(f"{reason or 'MISSED':16} {what}", flush=True)
            if reason is None:
                missed.append(what)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        subprocess.run(["cmake", "--build", tree, "--target", target], check=True,
                       stdout=subprocess.DEVNULL)
    print(f"{tried - len(missed)} of {tried} mutants found")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
