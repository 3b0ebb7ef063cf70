"""Certificates for tests, made by the openssl command."""

import os
import subprocess


def _openssl(*args, text=None):
    subprocess.run(["openssl", *args], check=True, capture_output=True, text=True, input=text)


class Authority:
    """A certificate authority in `folder`; `path` is its certificate."""

    def __init__(self, folder, name="ca"):
        self.folder = folder
        self.path = os.path.join(folder, f"{name}.pem")
        self._key = os.path.join(folder, f"{name}.key")
        _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                 "-nodes", "-keyout", self._key, "-out", self.path, "-days", "30",
                 "-subj", f"/CN=test {name}")

    def issue(self, name, sans=("DNS:localhost", "IP:127.0.0.1"), expired=False):
        """(certificate file, key file) for `name`; without `sans`, a name alone."""
        key, request, certificate, extensions = (
            os.path.join(self.folder, f"{name}.{kind}") for kind in ("key", "csr", "pem", "ext"))
        _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                 "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        with open(extensions, "w", encoding="ascii") as file:
            file.write("basicConstraints=CA:FALSE\n")
            if sans:
                file.write(f"subjectAltName={','.join(sans)}\n")
        # `openssl x509` cannot date back, `openssl ca` can; a negative number of days does as well.
        _openssl("x509", "-req", "-in", request, "-CA", self.path, "-CAkey", self._key,
                 "-CAcreateserial", "-out", certificate, "-extfile", extensions,
                 "-days", "-1" if expired else "20")
        return certificate, key


def read(path):
    with open(path, "rb") as file:
        return file.read()


def replace(path, text):
    """As a careful operator does: never half of it is there."""
    with open(path + ".new", "wb") as file:
        file.write(text)
    os.replace(path + ".new", path)
