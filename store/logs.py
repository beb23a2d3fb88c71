"""Where events are told: structlog makes the line, Python's own logging takes it where the program says.

A library speaks only when it is asked to. Without a handler on the logger "raymq" nothing is written; a
process of ours gives it one (`tell_events`), and so may any program: `logging.getLogger("raymq")`.
"""

from __future__ import annotations

import logging
from typing import cast

import structlog

LOGGER_NAME = "raymq"

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
