"""Configures the log: one line for each event on stderr, key=value for people or JSON."""

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import Processor

FIRST = ["time", "level", "event"]


def configure(level: str, form: str) -> None:
    """Set the log of this process up; `level` is "debug", "info", "warning" or "error", `form`
    "console" or "json"."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *(_json() if form == "json" else _console()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _console() -> list[Processor]:
    return [
        structlog.processors.TimeStamper(fmt="%H:%M:%S.%f", utc=False, key="time"),
        structlog.processors.format_exc_info,
        structlog.processors.LogfmtRenderer(key_order=FIRST, drop_missing=True),
    ]


def _json() -> list[Processor]:
    """Return the processors for JSON. Times are in
    UTC with their date, to sort lines of machines."""
    return [
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        # locals may have prompts and keys
        structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
        structlog.processors.JSONRenderer(),
    ]
