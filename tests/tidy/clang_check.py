#!/usr/bin/env python3
"""clang's view of the sources: thread-safety analysis, headers that compile alone, clang-tidy.

usage: clang_check.py SOURCE_DIR COMPILE_COMMANDS

Every first-party source is parsed with -Wthread-safety -Werror, and every header alone with the flags
of a source in its folder, or the next above; a header that a source includes first was parsed alone
with that source. nvcc checks the .cu files; headers that need CUDA's are left out where the build
has none. gRPC's headers are read once for all sources that include them. clang-tidy (.clang-tidy)
sees the layers below gRPC, whose headers alone would take it half a minute a file, and in a unity build
the sources of a piece at once: most of its time goes into headers.
"""

import concurrent.futures
import functools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

FOLDERS = ("base", "matrix", "kernels", "server", "client")
TIDY_FOLDERS = ("base/", "matrix/", "kernels/", "server/engine/", "server/telemetry/")
RPC_HEADERS = ("grpcpp/grpcpp.h", "grpcpp/generic/generic_stub.h")
WARNINGS = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Wthread-safety"]


def flags_of(entry):
    """The include, define and language flags of a compile command."""
    words = shlex.split(entry["command"])
    kept, take = [], False
    for word in words:
        if take:
            kept.append(word)
            take = False
        elif word in ("-I", "-isystem", "-D"):
            kept.append(word)
            take = True
        elif word.startswith(("-I", "-D", "-std=", "-isystem")):
            kept.append(word)
    return kept


def is_unity(path):
    return re.search(r"/Unity/unity_\d+_cxx\.cxx$", path)


def sources_of(entry):
    """The sources of a compile command: one, or those that a unity source includes."""
    path = os.path.realpath(entry["file"])
    if not is_unity(path):
        return [path]
    with open(path, encoding="utf-8") as file:
        return re.findall(r'^#include "(/[^"]+)"', file.read(), re.M)


def run(command):
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    # clang-tidy counts suppressed warnings on stderr.
    return result.returncode, result.stdout + result.stderr


def main():
    root, database = sys.argv[1:]
    root = os.path.realpath(root)
    with open(database, encoding="utf-8") as file:
        entries = json.load(file)
    jobs, rpc_jobs, tidy_jobs, flags_by_folder, parsed_first = [], [], {}, {}, set()
    for entry, source in ((entry, source) for entry in entries for source in sources_of(entry)):
        path = os.path.relpath(source, root)
        if not path.startswith(FOLDERS) or path.endswith(".cu"):
            continue
        flags = flags_of(entry)
        flags_by_folder[os.path.dirname(path)] = flags
        parsed_first.add(first_include(source))
        if path.startswith(TIDY_FOLDERS):
            whole = os.path.realpath(entry["file"])
            tidy_jobs[whole] = (path if whole == source else f"{path} and what is built with it",
                                tidy_command(root, whole, flags))
            if whole == source:
                continue  # clang-tidy parses it alone
        command = ["clang++", "-fsyntax-only", "-Werror", *WARNINGS, *flags, source]
        (rpc_jobs if includes(root, path, r"grpcpp/|tcgemm/v1/") else jobs).append((path, command))
    with tempfile.TemporaryDirectory() as folder:
        if rpc_jobs:
            pch = precompile(folder)
            jobs = [(path, [*command, "-include-pch", pch]) for path, command in rpc_jobs] + jobs
        jobs = list(tidy_jobs.values()) + jobs  # the longest first
        jobs += header_jobs(root, folder, flags_by_folder, parsed_first)
        if not jobs:
            sys.exit("nothing to check: is the compile database of this tree?")
        failed = 0
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for (path, _), (code, text) in zip(jobs, pool.map(run, [job[1] for job in jobs])):
                if code:
                    failed += 1
                    print(f"== {path}\n{text}")
    print(f"{len(jobs) - failed} of {len(jobs)} are clean")
    sys.exit(1 if failed else 0)


@functools.lru_cache(maxsize=None)
def includes(root, path, pattern):
    """Whether a file includes what begins like the pattern, itself or through others of ours."""
    try:
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:  # not ours, or generated
        return False
    return bool(re.search(rf'^#include [<"]({pattern})', text, re.M)) or any(
        includes(root, name, pattern) for name in re.findall(r'^#include "([^"]+)"', text, re.M))


def tidy_command(root, source, flags):
    # A unity source lies in the build, whose .clang-tidy this is not, and includes sources.
    return ["clang-tidy", "--quiet", f"--config-file={root}/.clang-tidy",
            "--checks=-bugprone-suspicious-include", "--warnings-as-errors=*", source, "--",
            *WARNINGS, *flags]


def precompile(folder):
    """gRPC's headers, for clang++ as these sources are parsed."""
    header, pch = os.path.join(folder, "rpc.h"), os.path.join(folder, "rpc.pch")
    with open(header, "w", encoding="ascii") as file:
        file.writelines(f"#include <{name}>\n" for name in RPC_HEADERS)
    code, text = run(["clang++", "-std=c++20", "-x", "c++-header", header, "-o", pch])
    if code:
        sys.exit(f"clang++ cannot precompile gRPC's headers:\n{text}")
    return pch


def flags_for(path, flags_by_folder, default):
    folder = os.path.dirname(path)
    while folder and folder not in flags_by_folder:
        folder = os.path.dirname(folder)
    return flags_by_folder.get(folder, default)


def first_include(source):
    """What a source includes before anything else."""
    with open(source, encoding="utf-8") as file:
        found = re.search(r'^#include [<"]([^>"]+)[>"]', file.read(), re.M)
    return found.group(1) if found else None


def header_jobs(root, folder, flags_by_folder, parsed_first):
    """A source of one line for each header that no source includes first."""
    jobs = []
    for top in FOLDERS:
        for where, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                path = os.path.relpath(os.path.join(where, name), root)
                if not name.endswith(".h") or path in parsed_first:
                    continue
                source = os.path.join(folder, path.replace("/", "_") + ".cc")
                with open(source, "w", encoding="ascii") as file:
                    file.write(f'#include "{path}"\n')
                flags = flags_for(path, flags_by_folder, ["-std=c++20", f"-I{root}"])
                if "-DTCGEMM_CUDA=1" not in flags and includes(root, path, "cuda"):
                    continue
                jobs.append((path, ["clang++", "-fsyntax-only", "-Wthread-safety", "-Werror",
                                    *flags, source]))
    return jobs


if __name__ == "__main__":
    main()
