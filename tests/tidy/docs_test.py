#!/usr/bin/env python3
"""docs/OPERATIONS.md names every flag, environment variable, metric, alert and exit code; every flag
can be set on the command line, in the environment and in the file."""

import os
import re
import subprocess
import tempfile
import tomllib
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def help_of(binary):
    return subprocess.run([os.path.join(os.environ["TCGEMM_BIN"], binary), "--help"],
                          capture_output=True, text=True, check=True).stdout


def print_config(*flags, env=None):
    """The server's whole configuration with these flags and variables."""
    clean = {k: v for k, v in os.environ.items()
             if not k.startswith("TCGEMM_") or k == "TCGEMM_BIN"}
    done = subprocess.run([os.path.join(os.environ["TCGEMM_BIN"], "tcgemm-server"),
                           "--print-config", *flags], capture_output=True, text=True, check=False,
                          env={**clean, **(env or {})})
    if done.returncode:
        raise AssertionError(f"{flags} {env}: {done.stderr}")
    return tomllib.loads(done.stdout)


def other_value(key, value):
    """Another value that the flag takes, as it is printed."""
    chosen = {"listen": ["127.0.0.1:1", "127.0.0.1:2"], "metrics-listen": "127.0.0.1:3",
              "preload": ["a=b.npy", "c=d.npy"], "device": "cpu", "cpu-backend": "plain",
              "log-level": "debug", "log-format": "json", "reflection": "off",
              "debug-pages": "off",
              "tls-cert": "c.pem", "tls-key": "k.pem", "tls-client-ca": "ca.pem",
              "tls-client-auth": "request", "token-file": "tokens", "access-log": "calls.log"}
    if key in chosen:
        return chosen[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value - 1 if value > 1 else value + 1
    return str(int(value.removesuffix("ns")) + 1_000_000) + "ns"


class FlagsTest(unittest.TestCase):
    def test_each_in_the_environment_and_in_the_file(self):
        known = set(re.findall(r"^\s+(?:-\w,)?--([a-z-]+)", help_of("tcgemm-server"), re.M))
        known -= {"help", "config", "print-config", "check-config", "version"}
        defaults = print_config()
        defaults.setdefault("preload", [])
        self.assertEqual(set(defaults), known)
        for key, value in defaults.items():
            wanted = other_value(key, value)
            self.assertNotEqual(wanted, value, key)
            text = ",".join(wanted) if isinstance(wanted, list) else str(wanted).lower()
            variable = "TCGEMM_" + key.upper().replace("-", "_")
            # Memory is shared over a unix socket alone.
            beside = {"TCGEMM_LISTEN": "unix:/x"} if key == "allow-shared-memory" else {}
            if key.startswith("tls-") or key == "token-file":
                beside = {"TCGEMM_TLS_CERT": "x.pem", "TCGEMM_TLS_KEY": "x.pem"}
            beside.pop("TCGEMM_" + key.upper().replace("-", "_"), None)
            self.assertEqual(print_config(env={**beside, variable: text})[key], wanted, variable)
            with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
                quoted = str(wanted).replace("'", '"') if isinstance(wanted, list) else (
                    f'"{wanted}"' if isinstance(wanted, str) else text)
                file.write(f"{key} = {quoted}\n")
                file.flush()
                self.assertEqual(print_config("--config", file.name, env=beside)[key], wanted, key)
                # The file too can be named in the environment.
                named = print_config(env={**beside, "TCGEMM_CONFIG": file.name})
                self.assertEqual(named[key], wanted, key)


class DocsTest(unittest.TestCase):
    def setUp(self):
        self.operations = read("docs/OPERATIONS.md")

    def test_every_server_flag(self):
        flags = set(re.findall(r"^\s+(?:-\w,)?(--[a-z-]+)", help_of("tcgemm-server"), re.M))
        self.assertGreater(len(flags), 20)
        for flag in flags - {"--help"}:
            self.assertIn(f"`{flag}", self.operations, flag)

    def test_every_metric(self):
        metrics = set(re.findall(r'"((?:tcgemm|process)_[a-z_]+)"',
                                 read("server/http/metrics.cc") + read("server/http/gpu_metrics.cc")))
        self.assertGreater(len(metrics), 25)
        for metric in metrics:
            self.assertIn(f"`{metric}", self.operations, metric)

    def test_every_alert(self):
        alerts = re.findall(r"- alert: (\w+)", read("deploy/prometheus/alert_rules.yml"))
        self.assertGreater(len(alerts), 12)
        for alert in alerts:
            self.assertRegex(self.operations, rf"(?m)^\| `{alert}` \|", alert)

    def test_every_client_exit_code(self):
        codes = re.findall(r"k\w+ = (\d)", read("client/cli/exit_code.h"))
        self.assertEqual(len(codes), 5)
        line = re.search(r"(?ms)^`tcgemm-client`: (.*?)\n\n", self.operations)[1]
        for code in codes:
            self.assertRegex(line, rf"\b{code}\s\w")

    def test_every_exit_code(self):
        codes = set(re.findall(r"= (\d),", read("server/main/server.h")))
        self.assertEqual(len(codes), 7)
        for code in codes:
            self.assertRegex(self.operations, rf"(?m)^\| {code} \|")

    def test_links_lead_somewhere(self):
        for where, _, names in os.walk(ROOT):
            if "/build" in where or "/.git" in where:
                continue
            for name in names:
                if not name.endswith(".md"):
                    continue
                path = os.path.join(where, name)
                with open(path, encoding="utf-8") as file:
                    text = file.read()
                for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
                    self.assertTrue(os.path.exists(os.path.join(where, link)), f"{path}: {link}")


if __name__ == "__main__":
    unittest.main()
