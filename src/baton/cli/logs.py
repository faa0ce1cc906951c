"""How a process writes its log: one line an event on stderr, with its fields as key=value."""

import logging
import sys

import structlog


def configure(level: str) -> None:
    """Set the log of this process up; `level` is "debug", "info", "warning" or "error"."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False, key="time"),
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["time", "level", "event"], drop_missing=True),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
