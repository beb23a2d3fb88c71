"""Plausible times: one in seconds or microseconds is refused, with the date that was understood."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

A_DAY_MS: Final = 86_400_000
EARLIEST_MS: Final = 946_684_800_000
"""The year 2000: RocketMQ is younger, and seconds since the epoch, taken as milliseconds, are in 1970."""
DELIVERY_AHEAD_MS: Final = 3_660 * A_DAY_MS
"""The latest delivery time, ten years from now. The limit of the brokers, `timer_max_delay_s`, is lower."""
_UNITS: Final = {"seconds": 1 / 1000, "microseconds": 1000, "nanoseconds": 1_000_000}


def date_of(time_ms: int) -> str:
    """Return a time in milliseconds since the epoch as a date in UTC."""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"a date in the year {1970 + time_ms // (365 * A_DAY_MS):,}"


def implausible(time_ms: int, now_ms: int, ahead_ms: int = A_DAY_MS) -> str | None:
    """Return why a time is refused, before 2000 or more than `ahead_ms` after now; None if it is not."""
    if EARLIEST_MS <= time_ms <= now_ms + ahead_ms:
        return None
    why = "before 2000" if time_ms < EARLIEST_MS else f"more than {ahead_ms // A_DAY_MS:,} days ahead"
    if ahead_ms == A_DAY_MS and time_ms >= EARLIEST_MS:
        why = "more than a day ahead"
    text = f"{time_ms} is {date_of(time_ms)}, which is {why}: give milliseconds since the epoch"
    for unit, factor in _UNITS.items():
        meant_ms = int(time_ms / factor)
        if EARLIEST_MS <= meant_ms <= now_ms + ahead_ms:
            return f"{text}, which for that many {unit} are {meant_ms}"
    return text
