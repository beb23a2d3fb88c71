"""A program that uses the library hears of events only when it asks to."""

from __future__ import annotations

import subprocess
import sys

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
        [sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True, timeout=60
    )
    return result.stdout + result.stderr


def test_nothing_is_printed_where_nobody_asked() -> None:
    assert output_of("silent") == ""


def test_who_asks_gets_one_line_an_event_from_that_level_on() -> None:
    [line] = output_of("asked").splitlines()
    assert "disk_filling" in line
    assert "0.9" in line
