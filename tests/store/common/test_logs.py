"""A program that uses the library sees its log events only after it asks for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.eventually import LIMIT_S

PROGRAM = """
import logging, sys
from store.common.logs import get_logger, log_to_handler
if sys.argv[1] == "handler":
    log_to_handler(logging.StreamHandler(sys.stdout), logging.WARNING)
get_logger("store.example").info("file_rolled", position=17)
get_logger("store.example").warning("disk_filling", ratio=0.9)
"""


def output_of(mode: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    return result.stdout + result.stderr


def test_library_prints_no_events_by_default() -> None:
    assert output_of("silent") == ""


def test_log_to_handler_prints_events_from_its_level_on() -> None:
    [line] = output_of("handler").splitlines()
    assert "disk_filling" in line
    assert "0.9" in line


def test_traceback_is_formatted_only_if_logged_and_hides_variables() -> None:
    program = """
import logging, sys
from store.common.logs import get_logger
log = get_logger("x")
class Failure(ValueError):
    shown = 0
    def __str__(self):
        Failure.shown += 1
        return "boom"
def fail(secret="hunter2"):
    raise Failure
try:
    fail()
except Failure as error:
    log.warning("failed", exc_info=error)
    assert Failure.shown == 0, "a traceback was made"
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    log.warning("failed", exc_info=error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S)
    assert result.returncode == 0, result.stderr
    assert "Failure: boom" in result.stdout
    assert "hunter2" not in result.stdout.replace('secret="hunter2"', "")
    assert "\x1b" not in result.stdout


RENDERER = "handler = logging.StreamHandler(); handler.setFormatter(ProcessorFormatter(processors=[fail]))"
HANDLER = "handler = logging.Handler(); handler.emit = fail"


@pytest.mark.parametrize(
    ("setup", "words"), [(RENDERER, "--- Logging error ---"), (HANDLER, "event_not_logged")]
)
def test_failing_log_renderer_or_handler_is_reported_and_never_raises(setup: str, words: str) -> None:
    program = f"""
import logging
from structlog.stdlib import ProcessorFormatter
from store.common.logs import get_logger
def fail(*_):
    raise RuntimeError("Set changed size during iteration")
{setup}
logging.basicConfig(handlers=[handler], level=logging.INFO)
get_logger("x").info("file_rolled")
logging.raiseExceptions = False
get_logger("x").info("disk_filling")
print("continues")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S)
    assert result.stdout == "continues\n"
    assert words in result.stderr
    assert "file_rolled" in result.stderr
    assert "RuntimeError: Set changed size during iteration" in result.stderr
    assert "disk_filling" not in result.stderr


def test_standard_logging_shows_event_fields_in_the_message() -> None:
    program = """
import logging, sys
from store.common.logs import get_logger
logging.basicConfig(stream=sys.stdout)
get_logger("x").warning("disk_filling", ratio=0.9, path="a b")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S)
    assert result.stdout == "WARNING:raymq.x:disk_filling ratio=0.9 path='a b'\n"
