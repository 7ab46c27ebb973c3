"""Structured logs: one JSON object a line on stderr, of our own lines and of every library's."""

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

SHARED: Final[tuple[Any, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)


class Seldom(logging.Filter):
    """Lets one line a period through: what peers can cause as often as they like fills no disk."""

    def __init__(self, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._seconds, self._clock = seconds, clock
        self._next = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        del record
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


def quiet_grpc() -> None:
    """Before grpc is imported: a peer's failed handshake is no line, a wrong message seldom one."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    logging.getLogger("grpc._cython.cygrpc").addFilter(Seldom())


def configure(level: int = logging.INFO) -> None:
    """For this process, first of all; of libraries (grpc, kopf, torch) warnings and worse."""
    quiet_grpc()
    structlog.configure(
        processors=[*SHARED, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*SHARED, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
