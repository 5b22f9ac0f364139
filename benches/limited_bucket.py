"""A bucket in memory, over S3's protocol, that moves a limited number of bytes per second."""

import pathlib
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests/python"))

from counting_bucket import DATE, listing, variables


class LimitedBucket:
    """Serves `objects`, of which all requests together read or write `rate` bytes per second (a token bucket), each
    after `delay` seconds."""

    def __init__(self, rate: float, delay: float = 0.0, name: str = "bucket"):
        self.objects: dict[str, bytes] = {}
        self.rate, self.delay, self.name = rate, delay, name
        self.moved = 0
        self._free_at = 0.0
        self._lock = threading.Lock()
        bucket = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def reply(self, status, body=b"", length=None, **headers):
                self.send_response(status)
                for header, value in headers.items():
                    self.send_header(header.replace("_", "-"), str(value))
                self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                self.wfile.write(body)

            def key(self):
                return unquote(urlsplit(self.path).path).removeprefix(f"/{name}").lstrip("/")

            def do_HEAD(self):
                content = bucket.objects.get(self.key())
                if content is None:
                    return self.reply(404)
                self.reply(200, length=len(content), ETag='"1"', Last_Modified=DATE)

            def do_GET(self):
                query = parse_qs(urlsplit(self.path).query)
                if "list-type" in query:
                    sizes = {key: len(content) for key, content in list(bucket.objects.items())}
                    return self.reply(200, listing(name, sizes, query), Content_Type="application/xml")
                content = bucket.objects.get(self.key())
                if content is None:
                    return self.reply(404)
                start, end = 0, len(content) - 1
                if wanted := self.headers.get("Range"):
                    first, last = wanted.removeprefix("bytes=").split("-")
                    start, end = int(first), min(int(last or len(content)), len(content) - 1)
                bucket.take(end + 1 - start)
                extra = {"Content_Range": f"bytes {start}-{end}/{len(content)}"} if wanted else {}
                self.reply(206 if wanted else 200, content[start : end + 1], ETag='"1"', Last_Modified=DATE, **extra)

            def do_PUT(self):
                content = self.rfile.read(int(self.headers["Content-Length"]))
                bucket.take(len(content))
                if self.headers.get("If-None-Match") and self.key() in bucket.objects:
                    return self.reply(412)
                bucket.objects[self.key()] = content
                self.reply(200, ETag='"1"')

            def do_DELETE(self):
                bucket.objects.pop(self.key(), None)
                self.reply(204)

            def do_POST(self):
                text = self.rfile.read(int(self.headers["Content-Length"])).decode()
                keys = re.findall("<Key>(.*?)</Key>", text)
                for key in keys:
                    bucket.objects.pop(key, None)
                deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
                self.reply(200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), Content_Type="application/xml")

        class Server(ThreadingHTTPServer):
            request_queue_size = 256
            daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def take(self, size: int):
        """Waits until so many bytes may be moved."""
        with self._lock:
            self.moved += size
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self.rate
            until = self._free_at
        time.sleep(max(until - now, 0.0) + self.delay)

    @property
    def environment(self):
        """The variables with which Forebay reaches the bucket."""
        return variables(self.server.server_port)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
