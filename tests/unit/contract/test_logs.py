"""Logs: every line on stderr is one JSON object, whoever wrote it."""

import json
import logging
import subprocess
import sys

from atoll_protos.logs import Seldom

CODE = """
import logging, structlog
from atoll_protos import logs
logs.configure()
structlog.contextvars.bind_contextvars(job="tiny", slot="us-0")
log = structlog.get_logger()
log.debug("not asked for")
log.info("tick", tick=7, odd=object)
try:
    1 / 0
except ZeroDivisionError:
    log.exception("two\\nlines")
logging.getLogger("grpc").warning("of a %s", "library")
logging.getLogger("grpc").info("chatter of a library")
"""


def test_every_line_is_json_with_the_fields_that_are_bound() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    tick, error, library = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.stdout == ""
    assert (tick["event"], tick["tick"], tick["level"]) == ("tick", 7, "info")
    assert tick["timestamp"].endswith("Z")
    assert (error["event"], error["level"]) == ("two\nlines", "error")
    assert "ZeroDivisionError: division by zero" in error["exception"]
    assert (library["event"], library["logger"]) == ("of a library", "grpc")
    assert all(line["job"] == "tiny" and line["slot"] == "us-0" for line in (tick, error, library))


def test_of_lines_that_a_peer_can_cause_one_a_period_is_written() -> None:
    now = 100.0
    line = logging.LogRecord("grpc", logging.ERROR, "", 0, "not a message", None, None)
    seldom = Seldom(60.0, lambda: now)
    assert [seldom.filter(line) for _ in range(3)] == [True, False, False]
    now += 60.0
    assert [seldom.filter(line) for _ in range(3)] == [True, False, False]
