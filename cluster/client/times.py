"""Check the times that programs give to the client."""

from __future__ import annotations

from cluster.client.errors import ConfigInvalid
from store.plausible_time import implausible


def check_plausible(name: str, time_ms: object, now_ms: int) -> None:
    """Raise ConfigInvalid unless a time is 0, the beginning, or between 2000 and tomorrow."""
    if type(time_ms) is not int:
        raise ConfigInvalid(f"{name} is {time_ms!r}: it must be an integer, milliseconds since the epoch")
    if time_ms and (why := implausible(time_ms, now_ms)) is not None:
        raise ConfigInvalid(f"{name}: {why}")
