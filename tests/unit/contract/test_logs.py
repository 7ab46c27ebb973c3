"""Logs: every line on stderr is one JSON object, whoever wrote it."""

import json
import subprocess
import sys

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
