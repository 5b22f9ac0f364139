"""A bucket of a local folder, over S3's protocol, that counts the bytes and requests of each object."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Callable
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class CountingBucket:
    """Serves the files of `folder` as the bucket `name`, and answers reads and listings after `delay` seconds.

    `reads` has the path and the byte range of each read. `delay_of` gives the seconds that reading a path takes.
    """

    def __init__(self, folder: Path, name: str = "bucket"):
        self.reads: list[tuple[str, int, int]] = []
        self.delay = 0.0
        self.delay_of: Callable[[str], float] = lambda _key: self.delay
        bucket = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def reply(self, status, body=b"", **headers):
                self.send_response(status)
                for header, value in headers.items():
                    self.send_header(header.replace("_", "-"), str(value))
                if "Content_Length" not in headers:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def object(self):
                url = urlsplit(self.path)
                key = unquote(url.path).removeprefix(f"/{name}").lstrip("/")
                return key, folder / key, parse_qs(url.query)

            def do_HEAD(self):
                key, path, _ = self.object()
                if not key or not path.is_file():
                    return self.reply(404)
                self.reply(200, Content_Length=path.stat().st_size, ETag='"1"', Last_Modified=DATE)

            def do_GET(self):
                key, path, query = self.object()
                if "list-type" in query:
                    # Only the prefix's folder is walked, so that a listing of many folders takes time once.
                    below = folder / query.get("prefix", [""])[0].rpartition("/")[0]
                    files = [path for path in below.rglob("*") if path.is_file()]
                    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
                    text = listing(name, sizes, query)
                    time.sleep(bucket.delay)
                    return self.reply(200, text, Content_Type="application/xml")
                if not path.is_file():
                    return self.reply(404)
                size = path.stat().st_size
                start, end = 0, size - 1
                if wanted := self.headers.get("Range"):
                    first, last = wanted.removeprefix("bytes=").split("-")
                    start, end = int(first), min(int(last or size), size - 1)
                with path.open("rb") as file:
                    file.seek(start)
                    body = file.read(end - start + 1)
                bucket.reads.append((key, start, end + 1))
                time.sleep(bucket.delay_of(key))
                extra = {"Content_Range": f"bytes {start}-{end}/{size}"} if wanted else {}
                self.reply(206 if wanted else 200, body, ETag='"1"', Last_Modified=DATE, **extra)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

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


DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


def listing(bucket: str, sizes: dict[str, int], query: dict[str, list[str]]) -> bytes:
    """The answer to a request for a list of these objects, under the query's prefix and up to its delimiter."""
    prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter")
    keys = sorted(key for key in sizes if key.startswith(prefix))
    folders = {prefix + key[len(prefix) :].split("/")[0] + "/" for key in keys if "/" in key[len(prefix) :]}
    if delimiter:
        keys = [key for key in keys if "/" not in key[len(prefix) :]]
    contents = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        f"<ETag>&quot;1&quot;</ETag><Size>{sizes[key]}</Size></Contents>"
        for key in keys
    )
    prefixes = "".join(
        f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        for name in (sorted(folders) if delimiter else ())
    )
    return (
        f"<?xml version='1.0' encoding='UTF-8'?><ListBucketResult><Name>{bucket}</Name>"
        f"<IsTruncated>false</IsTruncated>{contents}{prefixes}</ListBucketResult>"
    ).encode()


def variables(port: int) -> dict[str, str]:
    """The variables with which Forebay reaches a bucket on this port."""
    return {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
    }
