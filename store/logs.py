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
from typing import Any

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


def _plain_processors() -> list[structlog.typing.Processor]:
    """An event as a line for people. Tracebacks are Python's: structlog's show what every variable holds, and
    take a tenth of a second each.
    """
    return [
        structlog.processors.add_log_level,
        structlog.processors.StackInfoRenderer(),
        structlog.dev.set_exc_info,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]


class EventLogger:
    """Tells events: `log.info("event_name", key=value)`. One that nobody hears costs next to nothing, and one
    that cannot be told ends nothing: whoever tells goes on, and standard error says why.
    """

    def __init__(self, logger: logging.Logger, *, has_last_resort: bool) -> None:
        self._logger = logger
        self._has_last_resort = has_last_resort
        self._configured: Any = structlog.wrap_logger(logger)
        self._plain: Any = structlog.wrap_logger(logger, processors=_plain_processors())
        self._loud: Any = structlog.wrap_logger(_LastResort(logger), processors=_plain_processors())

    def debug(self, event: str, **told: Any) -> None:
        """What only who looks for a fault wants."""
        self._tell(logging.DEBUG, event, told)

    def info(self, event: str, **told: Any) -> None:
        """What goes its way."""
        self._tell(logging.INFO, event, told)

    def warning(self, event: str, **told: Any) -> None:
        """What somebody should look at."""
        self._tell(logging.WARNING, event, told)

    def error(self, event: str, **told: Any) -> None:
        """What has failed."""
        self._tell(logging.ERROR, event, told)

    def exception(self, event: str, **told: Any) -> None:
        """What has failed, with the exception that is being handled."""
        self._tell(logging.ERROR, event, {"exc_info": True, **told})

    def _tell(self, level: int, event: str, told: dict[str, Any]) -> None:
        if structlog.is_configured():
            events = self._configured
        elif not self._logger.isEnabledFor(level):
            return
        elif self._is_heard():
            events = self._plain
        elif self._has_last_resort:
            events = self._loud
        else:
            return
        try:
            getattr(events, logging.getLevelName(level).lower())(event, **told)
        except Exception:  # noqa: BLE001 -- a program's own processors and renderers may do anything
            if logging.raiseExceptions:  # as Python's own handlers do
                self._loud.error("event_not_told", told=event, exc_info=True)

    def _is_heard(self) -> bool:
        logger: logging.Logger | None = self._logger
        while logger is not None:
            if any(not isinstance(each, logging.NullHandler) for each in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


class _LastResort:
    """Python's own last resort (warnings and worse on standard error), as a logger that structlog ends in."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def warning(self, line: str) -> None:
        self._write(logging.WARNING, line)

    def error(self, line: str) -> None:
        self._write(logging.ERROR, line)

    def info(self, line: str) -> None:
        """Nothing that has to be seen."""

    debug = info

    def _write(self, level: int, line: str) -> None:
        if logging.lastResort is not None:
            logging.lastResort.handle(
                self._logger.makeRecord(self._logger.name, level, "", 0, line, (), None)
            )


def get_logger(module: str, *, has_last_resort: bool = False) -> EventLogger:
    """The logger of a module. With `has_last_resort` warnings and worse are on standard error where the
    program has no handler at all: for what the program itself did wrong, as Python tells it of callbacks.
    """
    return EventLogger(logging.getLogger(f"{LOGGER_NAME}.{module}"), has_last_resort=has_last_resort)


def tell_events(handler: logging.Handler, level: int = logging.INFO) -> None:
    """Hand the events of this process from `level` on to `handler`, as the lines that structlog renders."""
    structlog.configure(
        processors=_plain_processors(), wrapper_class=structlog.make_filtering_bound_logger(level)
    )
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
    """The event with the values of all keys that sound like a secret hidden, also in mappings and lists
    inside it.
    """
    return {
        key: HIDDEN if _SECRET.search(str(key)) else _without_secrets(value) for key, value in event.items()
    }


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_secrets(value)
    return [_without_secrets(each) for each in value] if isinstance(value, list | tuple) else value
