"""Slices: the requests of one connection that take long, handled a few milliseconds per turn.

    handler ──► generator ── next ──► … 2 ms ──► enqueued ──► other requests ──► next ──► … ──► response

A handler that does much work is a generator: each `yield` is a place where other requests may be handled.
Most requests finish in their first slice, within the call of the handler. The others continue among the
costly requests of the loop (`scheduler`). Sliced requests of one connection keep their order:
a client's second heartbeat does not overtake its first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Final, NamedTuple

from actors.transport.hub import Hub
from actors.wire.command import RemotingCommand
from store.common.logs import get_logger

_log = get_logger(__name__)

SLICE_NS: Final = 2_000_000

Steps = Generator[None, None, RemotingCommand | None]
"""Handles one request in steps of less than a millisecond, and returns its response, if there is one."""


class _Sliced(NamedTuple):
    steps: Steps
    finish: Callable[[RemotingCommand | Exception | None], None]


class Slices:
    """The unfinished requests of one connection. They are finished even if the connection closes."""

    __slots__ = ("_hub", "_waiting")

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._waiting: deque[_Sliced] = deque()

    def add(self, steps: Steps, finish: Callable[[RemotingCommand | Exception | None], None]) -> None:
        """Run `steps` after the earlier ones, and call `finish` with their result or their exception."""
        self._waiting.append(_Sliced(steps, finish))
        if len(self._waiting) == 1:
            self._run_slice()

    def _run_slice(self) -> None:
        steps, finish = self._waiting[0]
        now_ns = self._hub.clock.monotonic_ns
        ends_ns = now_ns() + SLICE_NS
        outcome: RemotingCommand | Exception | None
        try:
            next(steps)
            while now_ns() < ends_ns:
                next(steps)
        except StopIteration as finished:
            outcome = finished.value
        except Exception as error:  # noqa: BLE001 - a bug in one handler becomes its response
            outcome = error
        else:
            self._hub.enqueue(self._run_slice)
            return
        self._waiting.popleft()
        finish(outcome)
        if self._waiting:
            self._hub.enqueue(self._run_slice)


def run_in_slices(hub: Hub, steps: Steps) -> None:
    """Run `steps` that have no response, such as the work after a connection has closed."""

    def finish(outcome: RemotingCommand | Exception | None) -> None:
        if isinstance(outcome, Exception):
            _log.error("sliced_work_failed", exc_info=outcome)

    Slices(hub).add(steps, finish)
