"""Structured logs: one JSON object a line on stderr, of our own lines and of every library's.

Every process of a job calls `configure` once, first of all. Our own lines go through structlog;
those of libraries (grpc, kopf, torch) go through the standard library's logging and get the same
form, from the level of warnings on.
"""

import logging
import sys
from typing import Any, Final

import structlog

SHARED: Final[tuple[Any, ...]] = (
    structlog.contextvars.merge_contextvars,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)


def configure(level: int = logging.INFO) -> None:
    """Set up structlog, and the standard library's logging likewise, for this process.

    Fields of all lines (job, region, slot, shard) are bound by `structlog.contextvars`.
    """
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
