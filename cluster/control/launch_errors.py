"""Errors of the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class LaunchRefused(Exception):
    """The request was refused; nothing was started or changed. The message has one line for each reason."""


class LaunchFailed(Exception):
    """An actor did not start, or a change failed. The message has one line for each actor."""


def refuse(reasons: Sequence[str]) -> None:
    """Raise LaunchRefused if `reasons` is not empty."""
    if reasons:
        raise refusal(reasons)


def refusal(reasons: Sequence[str]) -> LaunchRefused:
    """Return the error for `reasons`, of which there is one or more."""
    return LaunchRefused("\n".join([*reasons, "nothing was started or changed"]))


@contextmanager
def refusing_damage(place: object, remedy: str) -> Iterator[None]:
    """Raise LaunchRefused with the place and the remedy if a record is damaged or cannot be read."""
    try:
        yield
    except (OSError, TypeError, ValueError) as error:
        raise refusal([f"{place} is damaged or unreadable ({error}): {remedy}"]) from error
