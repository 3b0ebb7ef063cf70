#!/usr/bin/env python3
"""docs/OPERATIONS.md names every flag, environment variable, metric, and exit code."""

import os
import re
import subprocess
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def help_of(binary):
    return subprocess.run([os.path.join(os.environ["TCGEMM_BIN"], binary), "--help"],
                          capture_output=True, text=True, check=True).stdout


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
                                 read("server/http/metrics.cc")))
        self.assertGreater(len(metrics), 25)
        for metric in metrics:
            self.assertIn(f"`{metric}", self.operations, metric)

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
