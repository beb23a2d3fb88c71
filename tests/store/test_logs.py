"""A program that uses the library hears of events only when it asks to."""

from __future__ import annotations

import subprocess
import sys

from tests.eventually import LIMIT_S

PROGRAM = """
import logging, sys
from store.logs import get_logger, tell_events
if sys.argv[1] == "asked":
    tell_events(logging.StreamHandler(sys.stdout), logging.WARNING)
get_logger("store.example").info("file_rolled", position=17)
get_logger("store.example").warning("disk_filling", ratio=0.9)
"""


def output_of(mode: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    return result.stdout + result.stderr


def test_nothing_is_printed_where_nobody_asked() -> None:
    assert output_of("silent") == ""


def test_who_asks_gets_one_line_an_event_from_that_level_on() -> None:
    [line] = output_of("asked").splitlines()
    assert "disk_filling" in line
    assert "0.9" in line


def test_a_traceback_that_nobody_hears_is_not_made_and_one_that_is_heard_shows_no_variables() -> None:
    program = """
import logging, sys
from store.logs import get_logger
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


def test_what_a_programs_own_structlog_raises_ends_nothing_and_is_told() -> None:
    program = """
import logging, structlog
from store.logs import get_logger
def render(logger, method, event):
    raise RuntimeError("Set changed size during iteration")
structlog.configure(processors=[render])
get_logger("x").info("file_rolled")
logging.raiseExceptions = False
get_logger("x").info("disk_filling")
print("goes on")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT_S)
    assert result.stdout == "goes on\n"
    assert "event_not_told" in result.stderr
    assert "file_rolled" in result.stderr
    assert "RuntimeError: Set changed size during iteration" in result.stderr
    assert "disk_filling" not in result.stderr
