"""Shared-memory regions with a stock client: the example of docs/SHARED_MEMORY.md, and more hands."""

import os
import re
import socket
import sys

import grpc
import numpy as np

import harness
from harness import pb

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def example():
    """The namespace of the document's Python."""
    with open(os.path.join(ROOT, "docs", "SHARED_MEMORY.md"), encoding="utf-8") as file:
        source = re.search(r"```python\n(.*?)```", file.read(), re.S)[1]
    names = {"__name__": "shared_memory_example"}
    exec(compile(source, "docs/SHARED_MEMORY.md", "exec"), names)  # pylint: disable=exec-used
    return names


EXAMPLE = example()
Region = EXAMPLE["Region"]


def put(region, offset, bits, ld=0):
    """Writes bf16 bits with `ld`; the Operand that names them."""
    rows, cols = bits.shape
    pitch = ld or cols
    view = np.lib.stride_tricks.as_strided(
        region.array(offset, (((rows - 1) * pitch + cols),), np.uint16), bits.shape,
        (2 * pitch, 2), writeable=True)
    view[:] = bits
    operand = region.operand(offset, bits.shape)
    operand.ld = ld
    return operand


def request(region, a, b, a_at=0, b_at=1 << 16, d_at=1 << 18, output=pb.FP32, **kwargs):
    return pb.MatmulRequest(a=put(region, a_at, a, **kwargs), b=put(region, b_at, b, **kwargs),
                            output_dtype=output, output=region.target(d_at))


def result(region, response, d_at=1 << 18):
    """The bytes of D."""
    size = 4 if response.dtype == pb.FP32 else 2
    return bytes(region.memory[d_at:d_at + response.rows * response.cols * size])


def side_connection(path):
    side = socket.socket(socket.AF_UNIX)
    side.connect(path)
    return side


def fetch(path, token):
    """(text, descriptors) of a side socket."""
    with side_connection(path) as side:
        side.sendall(token)
        text, fds, _, _ = socket.recv_fds(side, 256, 4)
    return text.decode(), fds


def open_region(stub, size):
    """Again while others open theirs: a caller may open four at a time."""
    while True:
        try:
            return Region(stub, size)
        except grpc.RpcError as error:
            if "being opened" not in error.details():
                raise


def footprint(server):
    """(descriptors, mappings of regions, threads) of the server's process."""
    root = f"/proc/{server.process.pid}"
    with open(f"{root}/maps", encoding="utf-8") as maps:
        regions = sum("memfd:tcgemm-region" in line for line in maps)
    return len(os.listdir(f"{root}/fd")), regions, len(os.listdir(f"{root}/task"))


def used_bytes(server):
    return server.metrics()['tcgemm_pool_bytes{pool="shared",state="used"}']


if __name__ == "__main__":
    # Another user's or a doomed process: argv is ADDRESS WHAT [ARGUMENTS], an answer on each line.
    _address, _what = sys.argv[1:3]
    with harness.stub(_address) as _stub:
        if _what == "multiply":
            # Somebody else's region.
            theirs = pb.RegionRef(region=sys.argv[3], offset=0)
            print(harness.code_of(lambda: _stub.Matmul(pb.MatmulRequest(
                a=pb.Operand(rows=2, cols=2, dtype=pb.BF16, region=theirs),
                b=pb.Operand(rows=2, cols=2, dtype=pb.BF16, region=theirs)), timeout=20)).name)
        elif _what == "fetch":
            print(fetch(sys.argv[3], bytes.fromhex(sys.argv[4])))
        elif _what == "work":
            # Until somebody kills it: one region after the other, products all the time.
            _rng = np.random.default_rng(3)
            _region = open_region(_stub, 1 << 20)
            _request = request(_region, harness.normal_bf16(_rng, 96, 128),
                               harness.normal_bf16(_rng, 128, 64))
            print("working", flush=True)
            while True:
                _stub.Matmul(_request, timeout=20)
