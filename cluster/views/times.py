"""Points in time and positions in a topic, as the command line and the web console accept them."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Literal

from store.plausible_time import date_of, implausible

_EARLIEST = ("earliest", "first", "beginning", "consume_from_first_offset")
_LATEST = ("latest", "last", "end", "consume_from_last_offset")
_SHOWN_CHARACTERS = 80
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_time_ms(text: str) -> int:
    """Parse a time and return milliseconds since the epoch.

    Accepts milliseconds, `now`, `2026-11-21`, `2026-11-21T09:30:00`, and times before now: `-90s`, `-15m`,
    `-2h`, `-3d`. Raises ConfigInvalid, also for a time before 2000 or more than a day ahead.
    """
    # Imported here, because the command line imports views before it needs a client.
    from cluster.client.errors import ConfigInvalid

    given = text.strip()
    now_ms = int(time.time() * 1000)
    if given == "now":
        return now_ms
    try:
        if re.fullmatch("[0-9]{1,18}", given):
            time_ms = int(given)
        elif ago := re.fullmatch("-([0-9]{1,12})([smhd])", given):
            time_ms = now_ms - int(ago[1]) * _UNITS_S[ago[2]] * 1000
        else:
            time_ms = int(datetime.fromisoformat(given).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError):  # also a time whose local time is after the year 9999
        time_ms = -1
    if time_ms < 0:
        shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
        raise ConfigInvalid(
            f"{shown!r} is not a valid time since 1970: use milliseconds since the epoch, "
            "2026-11-21T09:30:00, or -15m"
        )
    if (why := implausible(time_ms, now_ms)) is not None:
        raise ConfigInvalid(f"{why}; 2026-11-21T09:30:00 and -15m are times too")
    return time_ms


def date_of_position(text: str | None) -> str | None:
    """Return the date of a position that is a time; None for other positions. Raises ConfigInvalid."""
    position = None if text is None else parse_position(text)
    return date_of(position) if isinstance(position, int) else None


def parse_position(text: str) -> Literal["earliest", "latest"] | int:
    """Parse a position in a topic: earliest, latest (or RocketMQ's and Kafka's synonyms), or a time in ms.

    Raises ConfigInvalid.
    """
    word = text.strip().lower()
    if word in _EARLIEST:
        return "earliest"
    return "latest" if word in _LATEST else parse_time_ms(text)
