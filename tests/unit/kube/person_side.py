"""The cluster of somebody's kubeconfig: an API on loopback that a test answers for."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import yaml

Answer = Callable[[str, str, dict[str, str], str], tuple[int, str]]


@contextmanager
def kubeconfig(file: Path, answer: Answer) -> Iterator[None]:
    """Write a kubeconfig of two contexts, `here` with the namespace team, and `other`.

    `answer` gets verb, path, query and body, and gives the HTTP status and the body.
    """

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            address = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(address.query).items()}
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            status, body = answer(self.command, address.path, query, sent)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST = do_DELETE = respond  # noqa: N815 - names of http.server

        def log_message(self, *arguments: object) -> None:
            """Nothing is printed."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        here = {"cluster": "c", "user": "u", "namespace": "team"}
        config = {
            "current-context": "here",
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [
                {"name": "here", "context": here},
                {"name": "other", "context": {"cluster": "c", "user": "u"}},
            ],
        }
        file.write_text(yaml.safe_dump(config))
        yield
        server.shutdown()
