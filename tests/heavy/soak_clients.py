"""One client of soak.py, until it is killed: soak_clients.py KIND TCP UNIX SEED.

Everything at full rate. What a kind may meet beside OK is listed with it; anything else, and any
result whose bits differ from the first answer's, ends the process with a line that says it."""

import os
import random
import sys

import grpc
import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import harness  # noqa: E402
import region_client  # noqa: E402
import resident_test  # noqa: E402
import stream_test  # noqa: E402
from harness import pb  # noqa: E402

CODE = grpc.StatusCode
# Full is a way to be, with so many clients: they go on.
FULL = {CODE.RESOURCE_EXHAUSTED}
# Another client's matrices may push out one's own.
GONE = FULL | {CODE.NOT_FOUND, CODE.ABORTED}
LARGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
BLOCK = 64 << 10


def attempt(call, allowed):
    """call(), or None when it ended with one of the `allowed` codes."""
    try:
        return call()
    except grpc.RpcError as error:
        if error.code() in allowed:
            return None
        raise


def shape(rng):
    """(m, n, k): mostly small, sometimes some MiB."""
    if rng.random() < 0.1:
        return rng.randint(500, 2000), rng.randint(1, 200), rng.randint(500, 1000)
    return rng.randint(1, 200), rng.randint(1, 200), rng.randint(1, 300)


def unary(stub, rng, numbers):
    m, n, k = shape(rng)
    request = harness.random_request(numbers, m, n, k)
    first = None
    for _ in range(5):
        if rng.random() < 0.1:  # one that nobody waits for
            stub.Matmul.future(request, timeout=60).cancel()
        answer = attempt(lambda: stub.Matmul(request, timeout=60), FULL)
        if answer is None:
            continue
        assert first in (None, answer.d), f"{m}x{n}x{k}: other bits than before"
        first = answer.d


def stream(stub, rng, numbers):
    m, n, k = shape(rng)
    a, b = harness.normal_bf16(numbers, m, k), harness.normal_bf16(numbers, k, n)
    first = None
    for _ in range(3):
        call = stub.MatmulStream(stream_test.messages(a, b, chunk=rng.choice([4096, 1 << 20])),
                                 timeout=60)
        if rng.random() < 0.3:  # dropped somewhere on the way
            attempt(lambda: [next(call, None) for _ in range(rng.randint(0, 2))],
                    FULL)  # pylint: disable=cell-var-from-loop
            call.cancel()
            continue
        answer = attempt(lambda: stream_test.collect(call),
                         FULL)  # pylint: disable=cell-var-from-loop
        if answer is None:
            continue
        assert first in (None, answer[0]), f"stream {m}x{n}x{k}: other bits than before"
        first = answer[0]


class Uploader:
    """Rows of 64 KiB, all of one block: its CRC, slow in Python, is summed once."""

    def __init__(self, numbers):
        self.bits = harness.normal_bf16(numbers, 1, BLOCK // 2)
        self.block = self.bits.tobytes()
        self.crc = resident_test.crc32c(self.block)

    def messages(self, rows, stop_after, name):
        yield resident_test.header(name, rows, BLOCK // 2)
        for row in range(min(rows, stop_after)):
            yield resident_test.part(row * BLOCK, self.block, self.crc)

    def __call__(self, stub, rng, _):
        rows = rng.randint(1, 64)
        stop_after = rows if rng.random() < 0.7 else rng.randint(0, rows)
        name = rng.choice(["", f"soak/{rng.randint(0, 9)}"])
        allowed = GONE | {CODE.ALREADY_EXISTS}
        info = attempt(lambda: stub.UploadMatrix(self.messages(rows, stop_after, name),
                                                 timeout=60), allowed)
        if info is None:
            if name:
                attempt(lambda: stub.DeleteMatrix(pb.DeleteMatrixRequest(handle=name), timeout=60),
                        GONE)
            return
        if stop_after == rows:
            chunks = attempt(lambda: [chunk.data for chunk in stub.DownloadMatrix(
                pb.DownloadMatrixRequest(handle=info.handle), timeout=60)],
                GONE | {CODE.FAILED_PRECONDITION})
            whole = None if chunks is None else b"".join(chunks)
            assert whole in (None, self.block * (len(whole or b"") // BLOCK)), "other bytes"
        if rng.random() < 0.7:
            attempt(lambda: stub.DeleteMatrix(pb.DeleteMatrixRequest(handle=info.handle),
                                              timeout=60), GONE)


def handles(stub, rng, numbers):
    """Up, multiplied where they are, the result kept and read."""
    m, n, k = rng.randint(1, 40), rng.randint(1, 40), rng.randint(1, 40)
    a, b = harness.normal_bf16(numbers, m, k), harness.normal_bf16(numbers, k, n)
    inline = attempt(lambda: stub.Matmul(harness.request(a, b), timeout=60), FULL)
    up = [attempt(lambda: resident_test.upload(stub, bits), GONE)  # pylint: disable=W0640
          for bits in (a, b)]
    if None not in up:
        request = pb.MatmulRequest(a=pb.Operand(handle=up[0].handle),
                                   b=pb.Operand(handle=up[1].handle))
        answer = attempt(lambda: stub.Matmul(request, timeout=60), GONE)
        assert None in (answer, inline) or answer.d == inline.d, "other bits by handle"
    for info in filter(None, up):
        if rng.random() < 0.8:  # the others wait to be evicted
            attempt(lambda: stub.DeleteMatrix(pb.DeleteMatrixRequest(handle=info.handle),
                                              timeout=60), GONE)  # pylint: disable=W0640


def region(stub, rng, numbers):
    """The supervisor punches holes into it meanwhile, so that its results may be anything."""
    opened = attempt(lambda: region_client.Region(stub, 4 << 20), FULL)
    if opened is None:
        return
    a, b = harness.normal_bf16(numbers, 300, 400), harness.normal_bf16(numbers, 400, 200)
    for _ in range(rng.randint(1, 30)):
        message = region_client.request(opened, a, b, d_at=1 << 20)
        attempt(lambda: stub.Matmul(message, timeout=60), FULL)  # pylint: disable=W0640
    if rng.random() < 0.8:
        opened.close()


def command(address, rng):
    """The command line, over lanes, as a stream and through shared memory."""
    shared = address.startswith("unix:") and rng.random() < 0.4
    way = ["--shared-memory"] if shared else rng.choice([["--lanes", "2"], ["--lanes", "3"],
                                                         ["--stream"]])
    m, n, k = shape(rng)
    done = harness.client("matmul", "--random", f"{m}x{n}x{k}", "--check", *way, server=address)
    # 4: full, or another client's matrix needed the room. 1, a wrong D: only a hole makes it.
    allowed = (0, 1, 4) if shared else (0, 4)
    assert done.returncode in allowed, f"{way} {m}x{n}x{k}: {done.returncode} {done.stderr}"


def main(kind, tcp, unix, seed):
    rng = random.Random(int(seed))
    numbers = np.random.default_rng(int(seed))
    while kind == "command":
        command(rng.choice([tcp, unix]), rng)
    work = {"unary": unary, "stream": stream, "handles": handles, "region": region}.get(kind)
    work = work or Uploader(numbers)
    while True:
        # A connection for some rounds.
        address = unix if kind == "region" or rng.random() < 0.5 else tcp
        with harness.stub(address, LARGE) as stub:
            for _ in range(rng.randint(1, 20)):
                work(stub, rng, numbers)


if __name__ == "__main__":
    main(*sys.argv[1:])
