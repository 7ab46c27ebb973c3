"""Answers liveness probes from outside: the processes of this host are not stopped.

Where a learner has several hosts, one that stands still holds all others. With all its processes
stopped the kernel still takes connections, so a thread of the launcher answers, over HTTP.

It begins before torch is imported, which takes seconds: each probe that fails is a Warning among
the Events of the pod. A startup probe asks STARTED_PATH, whose answer waits for the import, since
no thread answers while a large library is loaded.
"""

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Final

import structlog

from atoll_protos import environment as variables
from atoll_protos.environment import Env
from atoll_protos.errors import SpecError
from atoll_protos.names import STARTED_PATH
from atoll_protos.network.listening import listening_socket, serve_http

ANSWER: Final = b"the launcher runs\n"
LATE: Final = b"the launcher has not started yet\n"
REQUEST_SECONDS_MAX: Final = 5.0
START_SECONDS_MAX: Final = 20.0  # before "not yet"; less than a startup probe waits
PORT_MAX: Final = 65_535


begun = threading.Event()  # all that the launcher needs is imported


log = structlog.get_logger()


class _Answers(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS_MAX  # of a connection on which nothing comes

    def do_GET(self) -> None:
        there = self.path != STARTED_PATH or begun.wait(START_SECONDS_MAX)
        answer = ANSWER if there else LATE
        self.send_response(200 if there else 503)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Nothing: a probe comes every few seconds."""


def answer_probes(environment: Mapping[str, str]) -> int:
    """Begin to answer on ATOLL_HEALTH_PORT, until this process ends; return that port, 0 for none.

    Raises SpecError if the variable is no port. A port that another one has is no error: on a
    host's own network a second launcher shares its ports.
    """
    text = environment.get(Env.HEALTH_PORT) or variables.default(Env.HEALTH_PORT)
    if not (text.isascii() and text.isdigit() and int(text[:6]) <= PORT_MAX):
        remedy = f"give a number from 1 to {PORT_MAX}, or 0 for none"
        raise SpecError(Env.HEALTH_PORT, f"is {text!r}", remedy)
    port = int(text)
    if not port:
        return 0
    try:
        listening = listening_socket("", port)
    except OSError as error:
        log.warning(f"nobody is told whether this host stands still: port {port}: {error}")
        return 0
    serve_http(listening, _Answers, "atoll-health")
    return port
