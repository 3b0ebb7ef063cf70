"""A network of its own for replicas: a namespace for the client, one for each server, and a name server
that knows both by one name. Needs root and iproute2.

The test's file runs twice: outside it makes the namespaces, runs itself in the client's, and takes
everything down again, whatever happened.
"""

import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading

NAME = "replicas.test"
PORT = 50051
METRICS_PORT = 9464
SERVERS = ("a", "b")
ADDRESS = {"a": "10.77.1.2", "b": "10.77.2.2"}
_CLIENT_ADDRESS = {"a": "10.77.1.1", "b": "10.77.2.1"}
_FOLDER = "/run/netns"
_INSIDE = "TCGEMM_REPLICA_NETWORK"  # the namespaces' prefix, once inside
_SKIP = "TCGEMM_REPLICA_NETWORK_MISSING"  # why there is none


def _ip(*args):
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True, timeout=30)


def _namespaces(prefix):
    return [f"{prefix}-{place}" for place in ("client", *SERVERS)]


def _remove(prefix):
    if shutil.which("ip") is None:
        return
    for name in _namespaces(prefix):
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=30)
        shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)


def _is_mounted():
    """A folder bound to itself, which os.path.ismount does not see."""
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        return any(line.split()[4] == _FOLDER for line in mounts)


def _remove_those_of_dead_tests():
    for name in os.listdir(_FOLDER) if os.path.isdir(_FOLDER) else ():
        match = re.fullmatch(r"(tcgemm-(\d+))-client", name)
        if match and not os.path.exists(f"/proc/{match[2]}"):
            _remove(match[1])


def _make(prefix):
    client = f"{prefix}-client"
    for name in _namespaces(prefix):
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
    for server in SERVERS:
        there = f"{prefix}-{server}"
        _ip("link", "add", f"to_{server}", "netns", client, "type", "veth",
            "peer", "name", "eth0", "netns", there)
        for name, link, address in ((client, f"to_{server}", _CLIENT_ADDRESS[server]),
                                    (there, "eth0", ADDRESS[server])):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            _ip("-n", name, "link", "set", link, "up")
    # ip netns exec puts it over /etc/resolv.conf.
    os.makedirs(f"/etc/netns/{client}")
    with open(f"/etc/netns/{client}/resolv.conf", "w", encoding="ascii") as file:
        file.write("nameserver 127.0.0.1\noptions timeout:1\n")


def missing():
    """Why there is no such network, or None inside of one."""
    return None if _INSIDE in os.environ else os.environ.get(_SKIP, "not run through its main")


def run_inside(path):
    """Runs `path` in the client's namespace; without the rights to, where it skips itself."""
    prefix = f"tcgemm-{os.getpid()}"
    environment = {name: value for name, value in os.environ.items()
                   if "proxy" not in name.lower()}
    command = [sys.executable, path, *sys.argv[1:]]
    was_mounted = _is_mounted()
    try:
        _remove_those_of_dead_tests()
        _make(prefix)
        environment[_INSIDE] = prefix
        command = ["ip", "netns", "exec", f"{prefix}-client", *command]
    except (OSError, subprocess.CalledProcessError) as error:
        words = getattr(error, "stderr", None) or str(error)
        environment[_SKIP] = f"no network namespaces here: {words.strip()}"
    try:
        return subprocess.run(command, env=environment, check=False).returncode
    finally:
        _remove(prefix)
        # ip makes it a mount of its own, which would outlive us and whoever wants the folder away.
        if not was_mounted and _is_mounted() and not os.listdir(_FOLDER):
            subprocess.run(["umount", _FOLDER], check=False, timeout=30)


def at(server):
    """What runs a program in a server's namespace: it replaces itself, so the process is the program."""
    return ["ip", "netns", "exec", f"{os.environ[_INSIDE]}-{server}"]


class NameServer:
    """Answers questions for A records of NAME with `servers`, in a thread; other names do not exist."""

    def __init__(self, servers=SERVERS):
        self.servers = servers
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while True:
            question, peer = self._socket.recvfrom(4096)
            if not question:
                return
            self._socket.sendto(self._answer(question), peer)

    def _answer(self, query):
        """RFC 1035, 4.1: the header, the question again, an answer for each address."""
        labels, at_byte = [], 12
        while query[at_byte]:
            end = at_byte + 1 + query[at_byte]
            labels.append(query[at_byte + 1:end].decode().lower())
            at_byte = end
        kind, _ = struct.unpack("!HH", query[at_byte + 1:at_byte + 5])
        known = ".".join(labels) == NAME
        addresses = [ADDRESS[s] for s in self.servers] if known and kind == 1 else []
        header = query[:2] + struct.pack("!HHHHH", 0x8580 if known else 0x8583, 1,
                                         len(addresses), 0, 0)
        # The name is that of the question (a pointer to byte 12); nobody should remember it long.
        records = [struct.pack("!HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(address)
                   for address in addresses]
        return header + query[12:at_byte + 5] + b"".join(records)

    def close(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self._socket.getsockname())
        self._thread.join(10)
        self._socket.close()
