"""A proxy in front of a store, which may stall, fail, or answer in its own way."""

import hashlib
import http.client
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Interposed(ThreadingHTTPServer):
    """Passes requests on, unless one of its attributes says otherwise.

    `stalls` holds requests back until `released` is set; `answer` is a status and a body for all requests; and `fault`
    gives the name of a fault for a request, or "".
    """

    daemon_threads = True

    def __init__(self, upstream: str):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream).netloc
        self.released = threading.Event()
        self.stalls: Callable[[str], bool] = lambda path: False
        self.answer: tuple[int, str] | None = None
        self.fault: Callable[[str], str] = lambda request: ""
        self.requests: list[str] = []


class Faults:
    """Draws a fault for some requests: by seed, request and how often it was repeated, so that threads change nothing.

    `shares` has the thousandths of each fault: "refused" answers 503; "reset" breaks the connection before the request
    is passed on; "lost" after that; and "truncated" in the middle of the answer.
    """

    def __init__(self, seed: int, **shares: int):
        self.seed = seed
        self.shares = shares
        self.drawn: Counter[str] = Counter()
        self._times: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, request: str) -> str:
        with self._lock:
            self._times[request] += 1
            text = f"{self.seed} {self._times[request]} {request}"
            left = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 1000
            for fault, share in self.shares.items():
                if left < share:
                    self.drawn[fault] += 1
                    return fault
                left -= share
            return ""


class _Handler(BaseHTTPRequestHandler):
    server: Interposed

    def _handle(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        request = f"{self.command} {self.path}"
        self.server.requests.append(request)
        if self.server.stalls(self.path):
            self.server.released.wait(60)
        fault = self.server.fault(f"{request} {self.headers.get('Range', '')}")
        if fault == "reset":
            return self._break()
        answer = (503, "<Error><Code>SlowDown</Code></Error>") if fault == "refused" else self.server.answer
        if answer is not None:
            status, text = answer
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else text.encode())
            return
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=60)
        upstream.request(self.command, self.path, body, dict(self.headers))
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        if fault == "lost":
            return self._break()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "server", "date"):
                self.send_header(name, value)
        self.end_headers()
        if fault == "truncated" and content:
            self.wfile.write(content[: len(content) // 2])
            return self._break()
        self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def _break(self):
        """Resets the connection, instead of closing it."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def handle(self):
        try:
            super().handle()
        except (OSError, ValueError):
            pass  # The client has gone, or `_break` has closed the connection.

    def finish(self):
        try:
            super().finish()
        except (OSError, ValueError):
            pass

    def log_message(self, *_):
        pass


@contextmanager
def interposed(environment) -> Iterator[tuple[Interposed, dict[str, str]]]:
    """Starts a proxy in front of the store of `environment`, and returns it with the environment that leads to it."""
    server = Interposed(environment["AWS_ENDPOINT_URL"])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server, environment | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
