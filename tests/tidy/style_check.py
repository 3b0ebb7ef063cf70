#!/usr/bin/env python3
"""The style rules that a program can check.     usage: style_check.py SOURCE_DIR

Each rule is a function from a Tree to complaints; style_check_test.py plants a violation of each.
"""

import os
import re
import sys

MAX_LINES, MAX_COLUMNS, MAX_FUNCTION_LINES = 400, 100, 70
CODE = (".h", ".cc", ".cu", ".cuh")
PAGES = (".html", ".css", ".js")
TEXT = CODE + PAGES + (".py", ".sh", ".cmake", ".txt", ".md", ".proto", ".json", ".toml", ".yml",
                       ".yaml")

# A folder may include itself and these. Longest prefix wins. tests/ and bench/ see everything.
LAYERS = {
    "base": {"base"},
    "matrix": {"matrix", "base"},
    "kernels": {"kernels", "matrix", "base"},
    "server/engine": {"server/engine", "kernels", "matrix", "base"},
    "server/security": {"server/security", "server/engine", "kernels", "base"},
    "server/telemetry": {"server/telemetry", "base"},
    "server/rpc": {"server/rpc", "server/security", "server/engine", "kernels", "matrix", "base",
                   "proto"},
    "server/http": {"server/http", "server/telemetry", "server/engine", "kernels", "base"},
    "server/main": {"server/main", "server/rpc", "server/security", "server/http",
                    "server/telemetry", "server/engine", "kernels", "base"},
    "client": {"client", "matrix", "base", "proto"},
}
OURS = set(LAYERS) | {"proto", "tests", "bench", "server"}
# What a layer never includes.
FOREIGN = {
    "base": r"grpc|google/protobuf|prometheus|cuda|dnnl|CLI/|spdlog",
    "matrix": r"grpc|google/protobuf|prometheus|cuda|dnnl|CLI/|spdlog",
    "kernels": r"grpc|google/protobuf|prometheus|CLI/|spdlog|^thread$",
    "server/engine": r"grpc|google/protobuf|prometheus|cuda|dnnl|CLI/|spdlog|Civet",
    "server/security": r"google/protobuf|cuda|dnnl|prometheus|CLI/|spdlog|Civet",
    "server/telemetry": r"grpc|google/protobuf|prometheus|cuda|nvml\.h|dnnl|CLI/|spdlog|Civet",
    "server/rpc": r"cuda|dnnl|prometheus|CLI/|spdlog|Civet",
    "server/http": r"cuda|dnnl|grpc|CLI/|spdlog",
    "client": r"cuda|dnnl|prometheus|Civet",
}
BANNED = {
    r"absl/synchronization|absl::Mutex(?!Lock\b)\b(?! is banned)": "absl::Mutex is banned",
    r"using namespace std\b(?!::(\w+_)?literals)": "using namespace std",
    r"\b(TODO|FIXME|XXX|HACK)\b": "unfinished work belongs into an issue",
    r"(?<![\w.])/(home|root|work)/\w": "a path of one machine",
    r"(?<![\w.])/(var/)?tmp/\w(?!.*XXXXXX)": "a fixed path for temporary files; use mktemp",
}
BAD_NAMES = re.compile(r"(^|[/_])(utils?|helpers?|manager|misc|data2)([/_.]|$)")


class Tree:
    """The files of a source tree: {path: text}."""

    def __init__(self, files):
        self.files = files

    @classmethod
    def read(cls, root):
        files = {}
        for where, folders, names in os.walk(root):
            skipped = (".git", "build", "__pycache__", "results")
            folders[:] = [f for f in folders if f not in skipped]
            for name in names:
                path = os.path.relpath(os.path.join(where, name), root)
                if name.endswith(TEXT) or path == ".ci/run":
                    with open(os.path.join(root, path), encoding="utf-8") as file:
                        files[path] = file.read()
        return cls(files)

    def code(self):
        return {p: t for p, t in self.files.items() if p.endswith(CODE)}


def layer_of(path):
    found = [layer for layer in LAYERS if path.startswith(layer + "/")]
    return max(found, key=len) if found else None


def check_lengths(tree):
    for path, text in tree.files.items():
        if not path.endswith(CODE + PAGES + (".sh",)):
            continue
        lines = text.split("\n")
        if len(lines) - 1 > MAX_LINES:
            yield f"{path}: {len(lines) - 1} lines, limit {MAX_LINES}"
        for number, line in enumerate(lines, 1):
            if len(line) > MAX_COLUMNS:
                yield f"{path}:{number}: {len(line)} columns, limit {MAX_COLUMNS}"


def check_functions(tree):
    """A function's head is the last line at column 0 or 2 before the ') … {' that opens it; it ends
    at the closing brace of the head's column."""
    opening = re.compile(r"\)[^;=]*\{$")
    no_function = re.compile(r"\s*(namespace|class|struct|enum|union|extern|template|#|//)")
    for path, text in tree.code().items():
        head, start, indent = 0, None, ""
        for number, line in enumerate(text.split("\n"), 1):
            if start is None:
                if re.match(r"(  )?\S", line) and not re.match(r"\s*[:}]", line):
                    head, indent = number, re.match(r" *", line).group()
                    is_function = not no_function.match(line)
                if head and is_function and opening.search(line):
                    start = head
            elif re.match(rf"{indent}\}}", line):
                if number - start + 1 > MAX_FUNCTION_LINES:
                    yield f"{path}:{start}: a function of {number - start + 1} lines, " \
                          f"limit {MAX_FUNCTION_LINES}"
                start = None


def check_whitespace(tree):
    for path, text in tree.files.items():
        if path.endswith(CODE + PAGES + (".py", ".sh", ".proto")):
            for number, line in enumerate(text.split("\n"), 1):
                if "\t" in line or line != line.rstrip():
                    yield f"{path}:{number}: a tab or blanks at the end"
        if text and not text.endswith("\n"):
            yield f"{path}: no newline at the end"


def check_guards(tree):
    for path, text in tree.code().items():
        if path.endswith(".h"):
            guard = "TCGEMM_" + re.sub(r"[^A-Z0-9]", "_", path.upper()) + "_"
            if f"#ifndef {guard}\n#define {guard}\n" not in text:
                yield f"{path}: the include guard must be {guard}"


def check_includes(tree):
    for path, text in tree.code().items():
        layer = layer_of(path)
        if layer is None:
            continue
        for name in re.findall(r'^#include "([^"]+)"', text, re.M):
            target = layer_of(name) or ("proto" if name.endswith(".pb.h") else name.split("/")[0])
            if target in OURS and target not in LAYERS[layer]:
                yield f"{path}: {layer} must not include {name}"
        for include in re.findall(r'^#include ["<](.+)[">]', text, re.M):
            if include.split("/")[0] not in OURS and re.search(FOREIGN.get(layer, "$^"), include):
                yield f"{path}: {layer} never sees {include}"


def check_links(tree):
    """tcgemm:: targets in a layer's CMakeLists obey the same direction."""
    library = {layer.split("/")[-1]: layer for layer in LAYERS} | {"proto": "proto"}
    for path, text in tree.files.items():
        layer = os.path.dirname(path)
        if os.path.basename(path) != "CMakeLists.txt" or layer not in LAYERS:
            continue
        for name in re.findall(r"tcgemm::(\w+)", text):
            target = library.get(name, layer)
            if target not in LAYERS[layer]:
                yield f"{path}: {layer} must not link tcgemm::{name}"


def check_banned(tree):
    for path, text in tree.files.items():
        if path.startswith("tests/tidy/"):
            continue
        for pattern, why in BANNED.items():
            for match in re.finditer(pattern, text):
                if why.startswith("absl") and not path.endswith(CODE):
                    continue
                line = text.count("\n", 0, match.start()) + 1
                if why.startswith("absl") and "//" in text.split("\n")[line - 1]:
                    continue
                yield f"{path}:{line}: {why}: {match.group()}"


def check_output(tree):
    """A library returns a Status or logs; only a main file and the command line print."""
    for path, text in tree.code().items():
        if layer_of(path) and not path.startswith("client/cli/"):
            for match in re.finditer(r"\bstd::(cout|cerr|clog)\b|<iostream>", text):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: a library does not print: {match.group()}"


def check_names(tree):
    for path in tree.files:
        if BAD_NAMES.search(path):
            yield f"{path}: say what it is, not utils, helper, manager"


def listed(tree, path):
    """{entry: reason} of a list file: 'entry: reason' a line."""
    entries = {}
    for line in tree.files.get(path, "").split("\n"):
        if line and not line.startswith("#"):
            entry, _, reason = line.partition(": ")
            entries[entry] = reason.strip()
    return entries


def check_tests_exist(tree):
    """Every source, and every header without one, has a test whose text names the header, or a
    reason in untested.txt."""
    reasons = listed(tree, "tests/tidy/untested.txt")
    tests = "\n".join(t for p, t in tree.files.items()
                      if p.startswith("tests/") and p.endswith("_test.cc"))
    for path in tree.code():
        header = os.path.splitext(path)[0] + ".h"
        if layer_of(path) is None or (path == header and path[:-2] + ".cc" in tree.files):
            continue
        if f'#include "{header}"' in tests:
            if path in reasons:
                yield f"tests/tidy/untested.txt: {path} has a test now"
        elif not reasons.get(path):
            yield f"{path}: no test includes {header}, and untested.txt gives no reason"
    for path in reasons:
        if path not in tree.files:
            yield f"tests/tidy/untested.txt: there is no {path}"


def check_sleeps(tree):
    """Tests wait for what happens; they do not sleep and hope."""
    reasons = listed(tree, "tests/tidy/sleeps.txt")
    for path, text in tree.files.items():
        if path.startswith("tests/") and not path.startswith("tests/tidy/"):
            if re.search(r"\bsleep_for\b|\busleep\(|time\.sleep\(", text) and not reasons.get(path):
                yield f"{path}: sleeps, and sleeps.txt gives no reason"


def check_using(tree):
    """clang-tidy sees several sources as one, and there only what the first file declares."""
    for path, text in tree.files.items():
        if path.endswith((".cc", ".cu")):
            for name in re.findall(r"^\s*using (?:::)?(?:\w+::)+(\w+);", text, re.M):
                if len(re.findall(rf"\b{name}\b", text)) == 1:
                    yield f"{path}: using {name}, which it does not use"


def check_scripts(tree):
    for path, text in tree.files.items():
        if path.endswith((".sh", ".ci/run")) and "set -euo pipefail" not in text:
            yield f"{path}: scripts start with set -euo pipefail"


RULES = [check_lengths, check_functions, check_whitespace, check_guards, check_includes,
         check_links, check_banned, check_output, check_names, check_tests_exist, check_sleeps,
         check_using, check_scripts]


def main():
    tree = Tree.read(sys.argv[1])
    if len(tree.code()) < 50:
        sys.exit("this does not look like the source tree")
    complaints = [c for rule in RULES for c in rule(tree)]
    print("\n".join(complaints) or f"{len(tree.files)} files are in style")
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
