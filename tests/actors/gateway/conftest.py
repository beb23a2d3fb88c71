"""Fixture of the tests of the gateway."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest


class _Errors(logging.Handler):
    """Collects the errors of tasks, futures and callbacks that asyncio reports as unhandled."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


@pytest.fixture(autouse=True)
def _no_unhandled_errors() -> Iterator[None]:
    errors = _Errors()
    logger = logging.getLogger("asyncio")
    logger.addHandler(errors)
    yield
    gc.collect()  # a task reports its error when it is freed
    logger.removeHandler(errors)
    assert not errors.texts, "\n".join(errors.texts)
