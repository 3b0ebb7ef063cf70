"""What the tests of deploy/ share: its files, and what the binaries take."""

import os
import re
import subprocess
import tomllib
import unittest

import yaml

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
DEPLOY = os.path.join(ROOT, "deploy")
SERVER = os.path.join(os.environ["TCGEMM_BIN"], "tcgemm-server")
CLIENT = os.path.join(os.environ["TCGEMM_BIN"], "tcgemm-client")
UNITS = {"": 1, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600,
         "k": 1 << 10, "g": 1 << 30, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def path(*parts):
    return os.path.join(DEPLOY, *parts)


def read(*parts):
    with open(path(*parts), encoding="utf-8") as file:
        return file.read()


def load(*parts):
    return yaml.safe_load(read(*parts))


def number(text, minutes=True):
    """'40s' → 40, '2g' → 2 GiB, '512Mi' → 512 MiB; 'm' is a minute or a mebibyte."""
    digits, unit = re.fullmatch(r"([\d.]+)(\w*)", str(text)).groups()
    return float(digits) * ((1 << 20) if unit == "m" and not minutes else UNITS[unit])


def stages():
    """{name: (base, [instruction])} of the Dockerfile, lines joined."""
    text = re.sub(r"(?m)^#.*\n", "", read("Dockerfile")).replace("\\\n", " ")
    found, current = {}, None
    for line in filter(None, text.split("\n")):
        match = re.fullmatch(r"FROM (\S+) AS (\S+)", line)
        if match:
            current = found.setdefault(match[2], (match[1], []))
        elif current:
            current[1].append(line)
    return found


def variables(target):
    """The server's environment as an image sets it."""
    text = " ".join(line[4:] for line in stages()[target][1] if line.startswith("ENV "))
    pairs = dict(pair.split("=", 1) for pair in text.split())
    return {name: value for name, value in pairs.items() if name.startswith("TCGEMM_")}


def flags(binary=SERVER):
    """Every flag of --help, without the dashes."""
    text = subprocess.run([binary, "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"^\s+(?:-\w,)?--([a-z-]+)", text, re.M))


def configuration(args=(), env=None):
    """What the server makes of flags and variables, as --print-config says; an AssertionError with
    its words when it refuses them. The budgets are held against this machine's memory."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TCGEMM_")}
    known = flags()
    for name in env or {}:
        if name.startswith("TCGEMM_") and name[7:].lower().replace("_", "-") not in known:
            raise AssertionError(f"the server has no flag for {name}")
    done = subprocess.run([SERVER, "--print-config", *args], capture_output=True, text=True,
                          env={**clean, **(env or {})}, check=False)
    if done.returncode:
        raise AssertionError(f"{args} {env}: {done.stderr}")
    return tomllib.loads(done.stdout)


def longest_drain_s(config):
    return number(config["drain-delay"]) + number(config["drain-timeout"])


def host_budgets(config):
    return config["pinned-bytes"] + config["queue-bytes"] + config["resident-bytes"]


def main():
    unittest.main()
