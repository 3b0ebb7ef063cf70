"""A GPU's telemetry for a server that has none: NVML's library replaced by tests/telemetry/fake_nvml."""

import os
import tempfile

import harness

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(harness.BIN)), "tests", "libfake_nvml.so")


class FakeGpu:
    """Use as a context manager; `env` is for the server, `script` says what happens from now on."""

    def __init__(self, *lines):
        with tempfile.NamedTemporaryFile("w", prefix="tcgemm-gpu-", delete=False) as file:
            self.path = file.name
        self.script(*lines)
        self.env = {"TCGEMM_FAILPOINT": f"nvml:{LIBRARY}", "TCGEMM_FAKE_NVML": self.path}

    def script(self, *lines):
        """As in fake_nvml.h; what was said before is forgotten."""
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
        os.replace(self.path + ".new", self.path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.unlink(self.path)
