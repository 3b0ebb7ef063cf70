"""A gRPC client at the level of HTTP/2 frames, for what stock clients will not do: deadlines without
a local timer, frames cut anywhere, payloads that stop half-way, readers that never read."""

import socket
import struct
import time

import h2.config
import h2.connection
import h2.events
import h2.exceptions

METHOD = "/tcgemm.v1.MatmulService/Matmul"
GRPC_DEADLINE_EXCEEDED = 4


def frame(message, compressed=0):
    """gRPC's length-prefixed message."""
    return struct.pack(">BI", compressed, len(message)) + message


class RawCall:
    """One connection with one call on it."""

    def __init__(self, address, *, headers=(), method=METHOD, window=None, timeout=30):
        if address.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(address.removeprefix("unix:"))
        else:
            host, port = address.rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(timeout)
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        if window is not None:
            self.h2.update_settings({4: window})  # SETTINGS_INITIAL_WINDOW_SIZE
        self.stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(self.stream, [
            (":method", "POST"), (":scheme", "http"), (":path", method),
            (":authority", "localhost"), ("te", "trailers"),
            ("content-type", "application/grpc"), *headers])
        self.headers = {}
        self.body = b""
        self.ended = False
        self.reset = None
        self._flush()

    def _flush(self):
        data = self.h2.data_to_send()
        if data:
            self.socket.sendall(data)

    def _handle(self, events):
        for event in events:
            if isinstance(event, (h2.events.ResponseReceived, h2.events.TrailersReceived)):
                self.headers.update(event.headers)
            elif isinstance(event, h2.events.DataReceived):
                self.body += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self.reset = event.error_code
                self.ended = True
            elif isinstance(event, (h2.events.StreamEnded, h2.events.ConnectionTerminated)):
                self.ended = True

    def pump(self):
        """Receives once; False when the server has closed the connection."""
        data = self.socket.recv(1 << 16)
        if not data:
            self.ended = True
            return False
        self._handle(self.h2.receive_data(data))
        self._flush()
        return True

    def send(self, data, *, end=False, chunk=1 << 14):
        """Sends `data` as the windows allow; stops when the server ends the call. Bytes sent."""
        sent = 0
        view = memoryview(data)
        while sent < len(data) and not self.ended:
            try:
                room = min(self.h2.local_flow_control_window(self.stream),
                           self.h2.max_outbound_frame_size, chunk)
            except h2.exceptions.ProtocolError:
                break
            if room <= 0:
                self.pump()
                continue
            piece = view[sent:sent + room]
            try:
                self.h2.send_data(self.stream, piece.tobytes())
                self._flush()
            except (h2.exceptions.ProtocolError, OSError):
                break
            sent += len(piece)
        if end and not self.ended:
            self.h2.end_stream(self.stream)
            self._flush()
        return sent

    def finish(self):
        """Reads to the end of the call. (grpc-status or None, message, seconds)."""
        start = time.monotonic()
        while not self.ended and self.pump():
            pass
        status = self.headers.get("grpc-status")
        return (None if status is None else int(status), self.headers.get("grpc-message", ""),
                time.monotonic() - start)

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
