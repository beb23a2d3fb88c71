"""Where events are told: structlog makes the line, Python's own logging takes it where the program says.

A library speaks only when it is asked to. Without a handler on the logger "raymq" nothing is written; a
process of ours gives it one (`tell_events`, `write_events`), and so may any program:
`logging.getLogger("raymq")`.

In a file an event is one line, a JSON object: `time` (ISO, UTC), `level`, `logger`, `event`, then what the
event tells, and `exception` where there was one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, cast

import orjson
import structlog

LOGGER_NAME = "raymq"
FILE_BYTES = 16 * 1024 * 1024
OLD_FILES = 5
HIDDEN = "***"

_SECRET = re.compile("token|secret|passw|credential|signature|access_?key", re.IGNORECASE)
_OTHERS = ("asyncio", "py.warnings")
"""Loggers of Python's own that tell what went wrong in our processes."""

logging.getLogger(LOGGER_NAME).addHandler(logging.NullHandler())


def get_logger(module: str) -> structlog.typing.FilteringBoundLogger:
    """The logger of a module: `log.info("event_name", key=value)`."""
    logger = logging.getLogger(f"{LOGGER_NAME}.{module}")
    return cast("structlog.typing.FilteringBoundLogger", structlog.wrap_logger(logger))


def tell_events(handler: logging.Handler, level: int = logging.INFO) -> None:
    """Hand the events of this process from `level` on to `handler`, as the lines that structlog renders."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(level))
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger(LOGGER_NAME)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def write_events(path: Path, level: int = logging.INFO) -> None:
    """Write the events of this process from `level` on to a file, and those of Python's own event loop.

    The file is made, with its folder, and rotated: `OLD_FILES` of `FILE_BYTES` are kept beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _EventsFile(path, maxBytes=FILE_BYTES, backupCount=OLD_FILES, encoding="utf-8")
    tell_events(handler, level)
    handler.setFormatter(_EventLine())
    structlog.configure(
        processors=[
            structlog.stdlib.add_logger_name,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            _as_line,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
    for name in _OTHERS:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False


class _EventsFile(RotatingFileHandler):
    """A full disk loses events; it must not end what they tell of, nor fill the terminal."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name that logging has for it
        """Go on without this line."""


class _EventLine(logging.Formatter):
    """structlog's events are lines already; what others log becomes one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        if record.name.startswith(LOGGER_NAME):
            return record.getMessage()
        event = {"level": record.levelname.lower(), "logger": record.name, "event": record.getMessage()}
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return _as_line(None, "", event)


def _as_line(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    head = {"time": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")}
    head |= {key: event.pop(key) for key in ("level", "logger", "event") if key in event}
    return orjson.dumps(
        {**head, **without_secrets(event)}, default=str, option=orjson.OPT_NON_STR_KEYS
    ).decode()


def without_secrets(event: Mapping[Any, Any]) -> dict[Any, Any]:
    """The event with the values of all keys that sound like a secret hidden, also in mappings inside it."""
    return {
        key: HIDDEN
        if _SECRET.search(str(key))
        else without_secrets(value)
        if isinstance(value, Mapping)
        else value
        for key, value in event.items()
    }
