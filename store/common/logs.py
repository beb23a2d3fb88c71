"""Logging: structlog events on Python's own loggers, below the logger "raymq".

    get_logger(__name__).info("file_rolled", position=17)
        ──> logging.getLogger("raymq.store…") ──> handlers: structlog's ProcessorFormatter renders the event

Nothing is written without a handler. RayMQ's own processes add one with `log_to_handler` or `log_to_file`; a
program that uses RayMQ as a library adds a handler to `logging.getLogger("raymq")` or to the root logger. An
event is rendered in the handler's formatter, so an event that no handler writes is not rendered.

Fields that clients can make long are cut, with their length: see `short`.

In a log file each event is one line with a JSON object: `time` (ISO, UTC), `level`, `logger`, `event`, the
fields of the event, and `exception` if there is one.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
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

TEXT_CHARS_MAX = 500
NESTED_CHARS_MAX = 100
ITEMS_MAX = 20
DEPTH_MAX = 4
TRACEBACK_CHARS_MAX = 16_384

_WHOLE = frozenset({"event", "exc_info", "stack_info"})
_SECRET = re.compile("token|secret|passw|credential|signature|access_?key", re.IGNORECASE)
_OTHER_LOGGERS = ("asyncio", "py.warnings")
"""Loggers of Python itself whose records `log_to_file` also writes to the log file.

They report errors of the event loop and warnings, which would otherwise appear on standard error only.
"""

logging.getLogger(LOGGER_NAME).addHandler(logging.NullHandler())


class EventLogger(structlog.stdlib.BoundLogger):
    """A structlog logger that never raises.

    A failing handler or filter of the application must not affect the code that logs an event.
    """

    def _proxy_to_logger(self, method_name: str, event: str | None = None, *args: str, **fields: Any) -> Any:
        try:
            return super()._proxy_to_logger(method_name, event, *args, **fields)
        except Exception:  # noqa: BLE001 - handlers of the application may raise anything
            if logging.raiseExceptions and sys.stderr is not None:  # as Python's own handlers do
                sys.stderr.write(f"event_not_logged event={event}\n{traceback.format_exc()}")


class _Event(dict[str, Any]):
    """The fields of an event, used as the message of a `logging` record.

    Its string form is readable, so any formatter of `logging` can print it.
    """

    def __str__(self) -> str:
        fields = (f"{key}={value!r}" for key, value in self.items() if key not in ("event", "exc_info"))
        return " ".join((str(self["event"]), *fields))


def short(value: Any, depth: int = 0) -> Any:
    """Return `value` for the log: long texts, lists and tables are cut and their length is named.

    A text has at most TEXT_CHARS_MAX characters (NESTED_CHARS_MAX in a list or table), a list or table
    ITEMS_MAX items, with half of it in each further level, and DEPTH_MAX levels.
    """
    if isinstance(value, str):
        limit = NESTED_CHARS_MAX if depth else TEXT_CHARS_MAX
        return value if len(value) <= limit else f"{value[:limit]}… ({len(value):,} characters)"
    if isinstance(value, bytes | bytearray | memoryview):
        size_bytes, limit = len(value), NESTED_CHARS_MAX
        shown = repr(bytes(value[:limit]))
        return shown if size_bytes <= limit else f"{shown}… ({size_bytes:,} bytes)"
    if not isinstance(value, Mapping | list | tuple | set | frozenset):
        return value
    if depth >= DEPTH_MAX:
        return f"{len(value):,} entries"
    limit = ITEMS_MAX >> depth
    more = len(value) - limit
    if isinstance(value, Mapping):
        table = {short(key, 1): short(each, depth + 1) for key, each in islice(value.items(), limit)}
        return {**table, "…": f"{more:,} more"} if more > 0 else table
    items = [short(each, depth + 1) for each in islice(value, limit)]
    return [*items, f"… {more:,} more"] if more > 0 else items


def _to_record(logger: WrappedLogger, method: str, event: EventDict) -> tuple[tuple[_Event], dict[str, Any]]:
    """Convert an event to arguments for a `logging` record that any formatter can render.

    structlog's formatter gets all fields; other formatters print the string form of the event.
    """
    fields = {key: value if key in _WHOLE else short(value) for key, value in event.items()}
    args, options = ProcessorFormatter.wrap_for_formatter(logger, method, fields)
    if "exc_info" in event:
        options["exc_info"] = event["exc_info"]
    return (_Event(*args),), options


PROCESSORS: list[Processor] = [structlog.stdlib.filter_by_level, cast("Processor", _to_record)]
"""The structlog processors of every logger; tests replace them to capture events."""


def get_logger(module: str, *, has_last_resort: bool = False) -> EventLogger:
    """Return the logger for a module; the name of the logger is `raymq.` followed by the module's name.

    With `has_last_resort`, warnings and errors are printed to standard error if the application has no log
    handler. Use it for errors in the application's own code, such as an exception of a callback.
    """
    logger = logging.getLogger(f"{LOGGER_NAME}.{module}")
    if has_last_resort:
        logger.addHandler(_LastResort(logging.WARNING))
    return EventLogger(logger, PROCESSORS, {})


class _LastResort(logging.Handler):
    """Passes a record to Python's `logging.lastResort` if no other handler receives it."""

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
    """Write this process's events with `level` or higher to `handler`, as human-readable lines."""
    # Use Python's traceback format: structlog's prints the values of all variables and takes 0.1 s each.
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    processors: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        ProcessorFormatter.remove_processors_meta,
        renderer,
    ]
    _add_handler(handler, level, processors)


def log_to_file(path: Path, level: int = logging.INFO) -> None:
    """Write this process's events with `level` or higher to a file as JSON lines.

    Records of asyncio and Python warnings are included. The file and its directory are created if necessary.
    The file is rotated when it reaches `FILE_BYTES`, and `OLD_FILES` old files are kept.
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
    """A log file that drops events if they cannot be written, for example on a full disk."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - named by logging
        """Drop the record: a full disk must not stop the process, nor fill the terminal with tracebacks."""


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
    exception = event.get("exception")
    if isinstance(exception, str) and len(exception) > TRACEBACK_CHARS_MAX:
        half = TRACEBACK_CHARS_MAX // 2
        event["exception"] = f"{exception[:half]}\n… ({len(exception):,} characters)\n{exception[-half:]}"
    return orjson.dumps(
        {**head, **without_secrets(event)}, default=str, option=orjson.OPT_NON_STR_KEYS
    ).decode()


def without_secrets(event: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a copy of the event in which values of keys that name a secret are replaced by `***`.

    A key names a secret if it contains a word such as token or password. Nested values are replaced too.
    """
    return {
        key: HIDDEN if _SECRET.search(str(key)) else _without_secrets(value) for key, value in event.items()
    }


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_secrets(value)
    return [_without_secrets(each) for each in value] if isinstance(value, list | tuple) else value
