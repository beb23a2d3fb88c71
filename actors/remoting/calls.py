"""Calls: the requests that one connection has sent to its peer, until the response or the deadline."""

from collections.abc import Callable
from typing import Final, TypeVar

from actors.remoting.command import RemotingCommand
from actors.remoting.remoting_errors import Closed, RemotingError, TimedOut
from store.logs import get_logger

_log = get_logger(__name__)

Callback = Callable[[RemotingCommand | RemotingError], None]
Argument = TypeVar("Argument")

_MAX_OPAQUE: Final = 0x7FFF_FFFF


class Calls:
    """Callbacks by opaque; each gets the response or a RemotingError, once."""

    __slots__ = ("_earliest_ns", "_last_opaque", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Callback, int]] = {}
        self._earliest_ns = 0
        self._last_opaque = 0

    def next_opaque(self) -> int:
        """Return a number for the next request; numbers repeat after 2^31."""
        self._last_opaque = (self._last_opaque + 1) & _MAX_OPAQUE
        return self._last_opaque

    def add(self, opaque: int, callback: Callback, deadline_ns: int) -> bool:
        """Wait for a response; return True if no other deadline comes before this one."""
        is_earliest = not self._waiting or deadline_ns < self._earliest_ns
        if is_earliest:
            self._earliest_ns = deadline_ns
        self._waiting[opaque] = (callback, deadline_ns)
        return is_earliest

    def take_response(self, response: RemotingCommand) -> None:
        """Pass a response to its callback; one that is late or was never requested is dropped."""
        waiting = self._waiting.pop(response.opaque, None)
        if waiting is not None:
            guarded(waiting[0], response)

    def expire(self, now_ns: int, peer: str) -> int | None:
        """Fail the calls whose deadline has passed; return the next deadline, if any call is waiting."""
        if not self._waiting:
            return None
        if self._earliest_ns > now_ns:
            return self._earliest_ns
        expired = [opaque for opaque, (_, deadline_ns) in self._waiting.items() if deadline_ns <= now_ns]
        callbacks = [self._waiting.pop(opaque)[0] for opaque in expired]
        self._earliest_ns = min((deadline_ns for _, deadline_ns in self._waiting.values()), default=0)
        for callback in callbacks:
            guarded(
                callback, TimedOut(peer, "no answer within the time given; the request may have been done")
            )
        return self._earliest_ns or None

    def fail_all(self, error: Closed) -> None:
        """Fail all calls: the connection is closed."""
        waiting, self._waiting = self._waiting, {}
        for callback, _ in waiting.values():
            guarded(callback, error)


def guarded(callback: Callable[[Argument], None], argument: Argument) -> None:
    """Call; an exception of the callback is logged, so that it does not fail other work."""
    try:
        callback(argument)
    except Exception:  # noqa: BLE001 - see above
        _log.exception("callback_failed")
