"""Logging: structlog events on Python's own loggers, below the logger "raymq".

    get_logger(__name__).info("file_rolled", position=17)
        ──> logging.getLogger("raymq.store…") ──> handlers: structlog's ProcessorFormatter renders the event

Nothing is written without a handler. A process of ours adds one (`log_to_handler`, `log_to_file`); a program
that uses the library adds its own to `logging.getLogger("raymq")` or above. An event is rendered in the
handler's formatter, so one that is not written costs no rendering.

In a file each event is one line, a JSON object: `time` (ISO, UTC), `level`, `logger`, `event`, the fields of
the event, and `exception` if there is one.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, cast

import orjson
import structlog
from structlog.stdlib import ProcessorFormatter
from structlog.typing import EventDict, Processor, WrappedLogger

LOGGER_NAME = "raymq"
FILE_BYTES = 16 * 1024 * 1024
OLD_FILES = 5
HIDDEN = "***"

_SECRET = re.compile("token|secret|passw|credential|signature|access_?key", re.IGNORECASE)
_OTHER_LOGGERS = ("asyncio", "py.warnings")
"""Python's own loggers that are written into a process's log file too."""

logging.getLogger(LOGGER_NAME).addHandler(logging.NullHandler())


class EventLogger(structlog.stdlib.BoundLogger):
    """Logs events. Never raises: a failing handler or filter of the program must not stop the caller."""

    def _proxy_to_logger(self, method_name: str, event: str | None = None, *args: str, **fields: Any) -> Any:
        try:
            return super()._proxy_to_logger(method_name, event, *args, **fields)
        except Exception:  # noqa: BLE001 - whatever the program's own handlers raise
            if logging.raiseExceptions and sys.stderr is not None:  # as Python's own handlers do
                sys.stderr.write(f"event_not_logged event={event}\n{traceback.format_exc()}")


class _Event(dict[str, Any]):
    """The fields of an event as a log record's message, readable by formatters that know no structlog."""

    def __str__(self) -> str:
        fields = (f"{key}={value!r}" for key, value in self.items() if key not in ("event", "exc_info"))
        return " ".join((str(self["event"]), *fields))


def _to_record(logger: WrappedLogger, method: str, event: EventDict) -> tuple[tuple[_Event], dict[str, Any]]:
    """Give an event to `logging`: for structlog's formatters, and with the exception for all others."""
    args, options = ProcessorFormatter.wrap_for_formatter(logger, method, event)
    if "exc_info" in event:
        options["exc_info"] = event["exc_info"]
    return (_Event(*args),), options


PROCESSORS: list[Processor] = [structlog.stdlib.filter_by_level, cast("Processor", _to_record)]
"""What every logger does with an event; tests replace it to capture events."""


def get_logger(module: str, *, has_last_resort: bool = False) -> EventLogger:
    """Return the logger of a module.

    With `has_last_resort`, warnings and errors go to standard error if the program has no handler at all: for
    faults of the program itself, as Python reports exceptions of callbacks.
    """
    logger = logging.getLogger(f"{LOGGER_NAME}.{module}")
    if has_last_resort:
        logger.addHandler(_LastResort(logging.WARNING))
    return EventLogger(logger, PROCESSORS, {})


class _LastResort(logging.Handler):
    """Passes records on to Python's handler of last resort if no other handler receives them."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.lastResort is not None and not _has_handler(logging.getLogger(record.name)):
            logging.lastResort.handle(record)


def _has_handler(logger: logging.Logger | None) -> bool:
    while logger is not None:
        if any(not isinstance(each, logging.NullHandler | _LastResort) for each in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def log_to_handler(handler: logging.Handler, level: int = logging.INFO) -> None:
    """Write the events of this process from `level` on to `handler`, as lines for people."""
    # Tracebacks are Python's: structlog's show the values of all variables and take 0.1 s each.
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    processors: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        ProcessorFormatter.remove_processors_meta,
        renderer,
    ]
    _add_handler(handler, level, processors)


def log_to_file(path: Path, level: int = logging.INFO) -> None:
    """Write the events of this process from `level` on to a file, and those of Python's own event loop.

    Makes the file and its folder, and rotates it: `OLD_FILES` of `FILE_BYTES` are kept beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _LogFile(path, maxBytes=FILE_BYTES, backupCount=OLD_FILES, encoding="utf-8")
    _add_handler(handler, level, [structlog.processors.format_exc_info, _to_json])
    for name in _OTHER_LOGGERS:
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False


def _add_handler(handler: logging.Handler, level: int, processors: list[Processor]) -> None:
    handler.setFormatter(ProcessorFormatter(processors=processors))
    logger = logging.getLogger(LOGGER_NAME)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


class _LogFile(RotatingFileHandler):
    """A full disk loses events; it must neither stop the process nor fill the terminal."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - named by logging
        """Drop the record."""


def _to_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    record: logging.LogRecord = event.pop("_record")
    del event["_from_structlog"]
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
    head = {
        "time": time.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "event": event.pop("event"),
    }
    return orjson.dumps(
        {**head, **without_secrets(event)}, default=str, option=orjson.OPT_NON_STR_KEYS
    ).decode()


def without_secrets(event: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the event with the values of all keys that name a secret hidden, also in nested values."""
    return {
        key: HIDDEN if _SECRET.search(str(key)) else _without_secrets(value) for key, value in event.items()
    }


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_secrets(value)
    return [_without_secrets(each) for each in value] if isinstance(value, list | tuple) else value
