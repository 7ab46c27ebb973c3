"""The server moto, of which one request acts at a time: it looks for a name, and makes it later.

So two conditional PUTs could both succeed, as on no real S3. For the Python that has moto.
"""

import io
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server import werkzeug_app  # type: ignore[import-not-found]
from werkzeug.serving import make_server

moto = werkzeug_app.DomainDispatcherApplication(werkzeug_app.create_backend_app)
acting = threading.Lock()


def one_at_a_time(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """What is read and sent is outside of the lock: a client may stop in the middle."""
    byte_count = int(environ.get("CONTENT_LENGTH") or 0)
    environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(byte_count))
    with acting:
        return [*moto(environ, start_response)]


if __name__ == "__main__":
    server = make_server(
        sys.argv[1],
        0,
        one_at_a_time,
        threaded=True,
        request_handler=werkzeug_app.MotoRequestHandler,
    )
    sys.stdout.write(f"Running on http://{sys.argv[1]}:{server.port}\n")
    sys.stdout.flush()
    server.serve_forever()
