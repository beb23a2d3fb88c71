"""Calls: requests in flight to the peer of one connection, until their response or deadline."""

from collections.abc import Callable
from typing import Final, TypeVar

from actors.wire.command import RemotingCommand
from actors.wire.remoting_errors import Closed, RemotingError, TimedOut
from store.common.logs import get_logger

_log = get_logger(__name__)

Callback = Callable[[RemotingCommand | RemotingError], None]
Argument = TypeVar("Argument")

_MAX_OPAQUE: Final = 0x7FFF_FFFF


class Calls:
    """Callbacks of requests in flight, by opaque.

    Each callback is called exactly once, with the response or with a RemotingError.
    """

    __slots__ = ("_earliest_ns", "_last_opaque", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Callback, int, int]] = {}
        self._earliest_ns = 0
        self._last_opaque = 0

    def next_opaque(self) -> int:
        """Return the opaque of the next request; numbers repeat after 2^31 requests."""
        self._last_opaque = (self._last_opaque + 1) & _MAX_OPAQUE
        return self._last_opaque

    @property
    def oldest_ns(self) -> int | None:
        """Monotonic time at which the oldest call in flight was sent; None if none is in flight."""
        return next((began_ns for _, _, began_ns in self._waiting.values()), None)

    def add(self, opaque: int, callback: Callback, deadline_ns: int, began_ns: int) -> bool:
        """Register the callback of a request; return True if its deadline is the earliest of all calls."""
        is_earliest = not self._waiting or deadline_ns < self._earliest_ns
        if is_earliest:
            self._earliest_ns = deadline_ns
        self._waiting[opaque] = (callback, deadline_ns, began_ns)
        return is_earliest

    def take_response(self, response: RemotingCommand) -> None:
        """Pass a response to its callback. A late response or one to an unknown request is dropped."""
        waiting = self._waiting.pop(response.opaque, None)
        if waiting is not None:
            guarded(waiting[0], response)

    def expire(self, now_ns: int, peer: str) -> int | None:
        """Fail the calls whose deadline has passed with TimedOut.

        Returns the next deadline in monotonic nanoseconds, or None if no call is in flight.
        """
        if not self._waiting:
            return None
        if self._earliest_ns > now_ns:
            return self._earliest_ns
        expired = [opaque for opaque, (_, deadline_ns, _) in self._waiting.items() if deadline_ns <= now_ns]
        callbacks = [self._waiting.pop(opaque)[0] for opaque in expired]
        self._earliest_ns = min((deadline_ns for _, deadline_ns, _ in self._waiting.values()), default=0)
        for callback in callbacks:
            guarded(
                callback,
                TimedOut(peer, "no response before the deadline; the request may have been processed"),
            )
        return self._earliest_ns or None

    def fail_all(self, error: Closed) -> None:
        """Fail all calls in flight with `error`, because the connection is closed."""
        waiting, self._waiting = self._waiting, {}
        for callback, _, _ in waiting.values():
            guarded(callback, error)


def guarded(callback: Callable[[Argument], None], argument: Argument) -> None:
    """Call `callback` and log an exception that it raises, so that it does not fail other work."""
    try:
        callback(argument)
    except Exception:  # noqa: BLE001 - see above
        _log.exception("callback_failed")
