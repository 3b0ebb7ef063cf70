"""A tcgemm-server for a benchmark: its addresses, and its metrics as numbers."""

import os
import re
import subprocess
import sys
import urllib.request


class Server:
    def __init__(self, folder, *flags, device="cuda"):
        self.process = subprocess.Popen(
            [os.path.join(folder, "tcgemm-server"), "--device", device, "--listen", "127.0.0.1:0",
             "--metrics-listen", "127.0.0.1:0", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        ready = self.process.stdout.readline()
        match = re.match(r"READY grpc=(\S+) metrics=(\S+) device=(\S+)", ready)
        if not match or not match.group(3).startswith(device):
            self.process.kill()
            sys.exit(f"no server on a device '{device}': {ready!r}")
        self.addresses = match.group(1).split(",")
        self.metrics = match.group(2)

    def samples(self):
        """Every sample by its name with labels, as /metrics prints it."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as page:
            lines = page.read().decode().split("\n")
        pairs = (line.rsplit(" ", 1) for line in lines if line and line[0] != "#")
        return {name: float(value) for name, value in pairs}

    def stop(self):
        self.process.terminate()
        if self.process.wait(60) != 0:
            sys.exit("a server did not drain")


def total(samples, name):
    """Over all labels."""
    return sum(value for key, value in samples.items() if re.match(name + r"(\{|$)", key))
