#!/usr/bin/env python3
"""The systemd unit and the example configuration: systemd-analyze, and that unit, configuration and
server agree."""

import os
import re
import subprocess
import tempfile
import unittest

import deployed

UNIT = "systemd/tcgemm-server.service"


def settings(section):
    """{key: value} of a section; no key is there twice."""
    text = re.search(rf"(?ms)^\[{section}\]\n(.*?)(?=^\[|\Z)", deployed.read(UNIT))[1]
    found = {}
    for line in text.split("\n"):
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            if key in found:
                raise AssertionError(f"{key} twice")
            found[key] = value
    return found


class SystemdTest(unittest.TestCase):
    def setUp(self):
        self.service = settings("Service")
        self.config = deployed.configuration([f"--config={deployed.path('tcgemm.toml')}"])

    def analyze(self, *args):
        """systemd-analyze of the unit, with the binary that was built here."""
        with tempfile.TemporaryDirectory() as folder:
            unit = os.path.join(folder, os.path.basename(UNIT))
            with open(unit, "w", encoding="utf-8") as file:
                file.write(deployed.read(UNIT).replace("/usr/bin/tcgemm-server", deployed.SERVER))
            done = subprocess.run(["systemd-analyze", *args, unit], capture_output=True, text=True,
                                  timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_systemd_takes_the_unit(self):
        code, output = self.analyze("verify", "--man=no")
        self.assertEqual((code, output.strip()), (0, ""))

    def test_it_is_hardened(self):
        # In tenths: 1.9 today, of 10. What is left is the network, devices and writable code.
        code, output = self.analyze("security", "--offline=true", "--threshold=20", "--no-pager")
        self.assertEqual(code, 0, output)

    def test_it_starts_what_is_installed(self):
        binary, flag = self.service["ExecStart"].split()
        self.assertEqual(binary, "/usr/bin/tcgemm-server")
        self.assertEqual(flag, "--config=/etc/tcgemm/tcgemm.toml")
        self.assertEqual(self.service["Type"], "exec")
        self.assertEqual(self.service["ExecReload"], "/bin/kill -HUP $MAINPID")

    def test_the_example_configuration(self):
        """It is good, and its sockets lie where the unit makes a folder."""
        done = subprocess.run([deployed.SERVER, "--check-config", "--config",
                               deployed.path("tcgemm.toml")], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.stdout, "the configuration is good\n", done.stderr)
        sockets = [address for address in self.config["listen"] if address.startswith("unix:")]
        self.assertEqual([os.path.dirname(s.removeprefix("unix:")) for s in sockets],
                         [f"/run/{self.service['RuntimeDirectory']}"])
        for address in [*self.config["listen"], self.config["metrics-listen"]]:
            self.assertTrue(address.startswith(("127.0.0.1:", "unix:")), address)

    def test_every_line_of_the_example_is_a_key_and_good(self):
        """Also those that are commented out."""
        keys = re.findall(r"(?m)^(?:# )?([a-z-]+) = ", deployed.read("tcgemm.toml"))
        self.assertGreater(len(keys), 8)
        self.assertLessEqual(set(keys), set(self.config) | {"preload"})
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(re.sub(r"(?m)^# ([a-z-]+ = )", r"\1", deployed.read("tcgemm.toml"))
                       .replace("4GiB", "1MiB").replace('"2GiB"', '"1GiB"'))
            file.flush()
            self.assertEqual(deployed.configuration([f"--config={file.name}"])["resident-bytes"],
                             1 << 20)

    def test_stop_and_restart(self):
        self.assertEqual(self.service["KillSignal"], "SIGTERM")
        self.assertGreater(deployed.number(self.service["TimeoutStopSec"]),
                           deployed.longest_drain_s(self.config) + 5)
        self.assertEqual(self.service["Restart"], "on-failure")
        with open(os.path.join(deployed.ROOT, "server", "main", "server.h"),
                  encoding="utf-8") as file:
            codes = dict(re.findall(r"k(\w+) = (\d),", file.read()))
        self.assertEqual(self.service["RestartPreventExitStatus"].split(),
                         [codes["BadConfig"], codes["CannotBind"]])


if __name__ == "__main__":
    deployed.main()
