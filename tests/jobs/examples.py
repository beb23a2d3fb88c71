"""Runs the flights examples of the documentation."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cluster.client.config import NAMESERVERS_ENV

EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"
FLIGHTS = 12_000


def run_example(name: str, nameservers: str) -> dict[str, Any]:
    """Send flights, unless an earlier example did, and run an example. Return its variables."""
    with patch.dict(os.environ, {NAMESERVERS_ENV: nameservers}):
        runpy.run_path(str(EXAMPLES / "send_flights.py"))["main"](FLIGHTS)
        # Ray pickles functions of `__main__` by value.
        return runpy.run_path(str(EXAMPLES / name), run_name="__main__")
