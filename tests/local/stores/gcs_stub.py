"""A small Google Cloud Storage: of its XML API what obstore uses, in memory, in threads.

PUT on the condition that the name is free, PUT, copies, GET with a range, HEAD, DELETE, a list by
prefix, first name and folder, uploads in parts. It asks for no credentials. Names are free of
characters that XML or a URL would write in another way.
"""

import hashlib
import itertools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

DATE = "2026-01-01T00:00:00.000Z"
LISTED_MAX = 1000  # of one answer, as there


@dataclass(slots=True)
class GcsStub:
    """What is stored."""

    buckets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def serving(self, bucket: str) -> Iterator[int]:
        """Serve, with one bucket, until the end of the block; gives the port."""
        self.buckets[bucket] = {}
        stub = self

        class Handler(_Handler):
            state = stub

        server = _Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # of connections that come at once

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what is wrong here; a client that goes away is not."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    disable_nagle_algorithm = True
    state: GcsStub

    def do_PUT(self) -> None:
        """Store a name, or a part of an upload."""
        body = self._body()
        with self.state.lock:
            bucket, name, query = self._where()
            if "uploadId" in query:
                self.state.uploads[query["uploadId"]][int(query["partNumber"])] = body
            elif bucket is None:
                return self._no("NoSuchBucket", 404)
            else:
                free = self.headers.get("x-goog-if-generation-match") == "0"
                if free and name in bucket:
                    return self._no("PreconditionFailed", 412)
                source = unquote(self.headers.get("x-goog-copy-source", "")).partition("/")[2]
                bucket[name] = bucket[source] if source else body
        return self._yes(b"", body)

    def do_POST(self) -> None:
        """Begin an upload in parts, or complete it."""
        self._body()
        with self.state.lock:
            bucket, name, query = self._where()
            if bucket is None:
                return self._no("NoSuchBucket", 404)
            if "uploads" in query:
                upload = str(next(self.state.numbers))
                self.state.uploads[upload] = {}
                return self._xml("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
            parts = self.state.uploads.pop(query["uploadId"])
            bucket[name] = b"".join(parts[number] for number in sorted(parts))
        return self._xml("CompleteMultipartUploadResult", "<ETag>whole</ETag>")

    def do_GET(self) -> None:
        """Give what a name holds, or some of it, or the names of a bucket."""
        with self.state.lock:
            bucket, name, query = self._where()
            if bucket is None:
                return self._no("NoSuchBucket", 404)
            if "list-type" in query:
                return self._names(bucket, query)
            if name not in bucket:
                return self._no("NoSuchKey", 404)
            data = bucket[name]
        if not (asked := self.headers.get("Range")):
            return self._yes(data, data)
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(data)) + 1, len(data))
        if start >= len(data):
            return self._no("InvalidRange", 416)
        of = {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"}
        return self._yes(data[start:end], data, status=206, **of)

    def do_HEAD(self) -> None:
        """Give what GET gives, but for the bytes."""
        self.do_GET()

    def do_DELETE(self) -> None:
        """Remove a name, or an upload that is not completed."""
        with self.state.lock:
            bucket, name, query = self._where()
            if "uploadId" in query:
                self.state.uploads.pop(query["uploadId"], None)
            elif bucket is None or bucket.pop(name, None) is None:
                return self._no("NoSuchKey", 404)
        return self._yes(b"", b"", status=204)

    def _names(self, bucket: dict[str, bytes], query: dict[str, str]) -> None:
        after = max(query.get("start-after", ""), query.get("continuation-token", ""))
        begins = query.get("prefix", "")
        found = sorted(name for name in bucket if name.startswith(begins) and name > after)
        folders = set[str]()
        if "delimiter" in query:
            inside = {name: name.removeprefix(begins).partition("/") for name in found}
            folders = {f"{begins}{first}/" for first, slash, _ in inside.values() if slash}
            found = [name for name in found if not inside[name][1]]
        shown = found[:LISTED_MAX]
        rows = "".join(
            f"<Contents><Key>{name}</Key><LastModified>{DATE}</LastModified><ETag>x</ETag>"
            f"<Size>{len(bucket[name])}</Size></Contents>"
            for name in shown
        )
        rows += "".join(
            f"<CommonPrefixes><Prefix>{each}</Prefix></CommonPrefixes>" for each in sorted(folders)
        )
        more = ""
        if len(found) > len(shown):
            more = f"<NextContinuationToken>{shown[-1]}</NextContinuationToken>"
        self._xml(
            "ListBucketResult", f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>{more}{rows}"
        )

    def _where(self) -> tuple[dict[str, bytes] | None, str, dict[str, str]]:
        """The bucket, None if there is none of this name; the name inside; the query."""
        url = urlsplit(self.path)
        bucket, _, name = unquote(url.path).lstrip("/").partition("/")
        query = parse_qs(url.query, keep_blank_values=True)
        return self.state.buckets.get(bucket), name, {key: each[0] for key, each in query.items()}

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _yes(self, body: bytes, whole: bytes, status: int = 200, **headers: str) -> None:
        """Answer with `body`, which is `whole` or some of it."""
        self.send_response(status)
        headers |= {"ETag": f'"{hashlib.md5(whole, usedforsecurity=False).hexdigest()}"'}
        headers |= {"Last-Modified": formatdate(usegmt=True), "Content-Length": str(len(body))}
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _xml(self, kind: str, inside: str, status: int = 200) -> None:
        text = f'<?xml version="1.0" encoding="UTF-8"?><{kind}>{inside}</{kind}>'.encode()
        self._yes(text, text, status, **{"Content-Type": "application/xml"})

    def _no(self, code: str, status: int) -> None:
        self._xml("Error", f"<Code>{code}</Code><Message>{code}</Message>", status)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Say nothing."""
