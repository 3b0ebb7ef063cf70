"""A TCP proxy that cuts connections where it is told, and can turn to another server."""

import socket
import threading


class CuttingProxy:
    """Forwards connections to `target` ("HOST:PORT"). Use as a context manager."""

    def __init__(self, target):
        self.target = target
        self.passed = {"up": 0, "down": 0}  # bytes of all connections so far
        self.connections = 0
        self._lock = threading.Lock()
        self._cuts = []  # (direction, bytes, what to do besides)
        self._open = set()
        self._threads = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def cut(self, direction, after, action=None):
        """When so many more bytes went "up" or "down", the connection that carries them is cut.
        `action`, if any, runs first, with the bytes standing still."""
        with self._lock:
            self._cuts.append((direction, self.passed[direction] + after, action))

    def cut_all(self):
        with self._lock:
            for sock in self._open:
                self._shut(sock)

    def pending(self):
        with self._lock:
            return len(self._cuts)

    @staticmethod
    def _shut(sock):
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            host, port = self.target.rsplit(":", 1)
            try:
                far = socket.create_connection((host, int(port)))
            except OSError:
                near.close()
                continue
            with self._lock:
                self.connections += 1
                self._open |= {near, far}
            for source, sink, direction in ((near, far, "up"), (far, near, "down")):
                thread = threading.Thread(target=self._pump, args=(source, sink, direction))
                thread.start()
                self._threads.append(thread)

    def _due(self, direction, count):
        """Notes the bytes; the action of a cut that they reach, or None."""
        with self._lock:
            self.passed[direction] += count
            for cut in self._cuts:
                if cut[0] == direction and self.passed[direction] >= cut[1]:
                    self._cuts.remove(cut)
                    return cut[2] or (lambda: None)
        return None

    def _pump(self, source, sink, direction):
        try:
            while data := source.recv(1 << 16):
                action = self._due(direction, len(data))
                if action is not None:
                    action()
                    break
                sink.sendall(data)
        except OSError:
            pass
        self._shut(source)
        self._shut(sink)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._shut(self._listener)
        self._listener.close()
        self._accepting.join(10)
        self.cut_all()
        for thread in self._threads:
            thread.join(10)
        for sock in self._open:
            sock.close()
